"""`/v1/fine_tuning/jobs`: the same tasks as in `/v1/tasks`, in OpenAI's shapes. A job's id is its task's.

request.py   the request that creates a job, with hyperparameters and grader, and the task file that it stands for
creating.py  a job as a task that is submitted
reading.py   jobs as the scheduler answers
job.py       a task's state, events and checkpoints as a job's, and pages of them
"""

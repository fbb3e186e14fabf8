"""`/v1/fine_tuning/jobs`: the same tasks as in `/v1/tasks`, in OpenAI's shapes. A job's id is its task's.

request.py   the request that creates a job, with hyperparameters and grader, and its conversion to a task file
creating.py  creates a job by submitting a task
reading.py   reads jobs from the scheduler
job.py       state, events and checkpoints of a task as those of a job, and pages of them
"""

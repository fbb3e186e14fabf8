"""`/v1/fine_tuning/jobs`: the same tasks as in `/v1/tasks`, in OpenAI's shapes. A job's id is its task's.

request.py      the request that creates a job
hyperparams.py  OpenAI's hyperparameters as fields of a task file
job.py          a task's state as a job
records.py      events and checkpoints
creating.py     a job as a task that is submitted · reading.py jobs as the scheduler answers
paging.py       pages of lists
repeats.py      whether the client repeats a request whose answer it lost
"""

"""Where and how calls of environments run: on the event loop, in worker processes, in hosted processes, and around them tools.

executor.py           chooses the place of a call, and runs it there
workers.py            worker processes for environments that compute
worker_process.py     what runs inside one
environment_cache.py  environments that a worker process has built
tool_calls.py         tools between an environment's steps
tool_state.py         what tools remember, packed around an environment's state
rewards.py            a task's weights of an outcome's components
"""

"""Execution of environments' calls: on the event loop, in worker processes or in hosted ones, with tools in between.

Consumes  calls of tasks for environments
Produces  outcomes, in batches as they become ready
Owns      the worker processes, and the environments built here
Layout    executor.py places a call and applies a task's weights, workers.py runs worker processes, worker_process.py runs inside one;
          tool_calls.py answers tool calls, tool_state.py packs their state
"""

"""Serving under latency goals on the engines that sample rollouts.

lender.py            each second: figures, the room that they leave, stalled turns handed back
lending.py           rollout sequences that a replica takes
scheduler.py         vLLM's schedulers: served requests before rollouts, rollouts held back for goals, checks while others are frozen
plan.py              which rollouts run in the next step · step_time.py how long a step takes
pressure.py          how many KV cache blocks rollouts keep if served requests lack some
figures.py           counts of the engine's process, which the service reads from a file · report.py those in the replica's report
"""

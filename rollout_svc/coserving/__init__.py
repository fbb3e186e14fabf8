"""Serving under latency goals on the engines that sample rollouts.

lender.py            each second: figures, the room that they leave, stalled turns handed back
lending.py           rollout sequences that a replica takes
preemption.py        vLLM's scheduler for pools that serve: served requests before rollouts
scheduler.py         the same with latency goals: rollouts held back · checks.py both for engines that sleep
plan.py              which rollouts run in the next step · step_time.py how long a step takes
entry.py             which waiting rollouts may enter
pressure.py          how many KV cache blocks rollouts will need, and keep if served requests lack some
figures.py           counts of the engine's process, which the service reads from a file
"""

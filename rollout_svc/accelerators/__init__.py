"""Samplers on a shared accelerator: engine state moves between device, host memory and disk (docs/pools.md).

tiers.py     parks and wakes an engine, and checks its state after each wake
sampler.py   the executor: tiers, message intake, and work done per task
sizes.py     size of an engine's state in bytes, and its KV capacity, parked or awake
"""

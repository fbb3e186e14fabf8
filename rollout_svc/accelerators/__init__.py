"""Samplers of a shared accelerator: their engine's state moves between the device, host memory and disk (docs/pools.md).

tiers.py     an engine parked and woken, and checked after each wake
sampler.py   the executor: tiers, the intake of messages, and what was done for whom
sizes.py     bytes of its state, and its capacity, parked or not
"""

"""Shared parts of benchmarks: reports, servers as child processes, stand-ins, and stage times of a stack.

report.py    header and location of every result
services.py  stacks as child processes, whole or without sampler and trainer
tasks.py     tasks of the injected kind: submitted, and awaited
standins.py  a sampler and a trainer that take injected times
injected.py  those times, and lower bounds from them
waiting.py   an environment that waits for the time in each reply
tap.py       stage times of turns, from a stack's messages
timeline.py  utilization and latencies from stage times
groups.py    contexts of groups
stages.py    a step's time in sampler, environment and trainer
cores.py     shares of the processor's cores
usage.py     processor time and memory of processes
models.py    base models with random weights
scheduler_costs.py  one admission and one noted step, rolled back
"""

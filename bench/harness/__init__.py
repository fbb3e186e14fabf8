"""Shared parts of benchmarks: reports, servers as child processes, stand-ins, and stage times of a stack.

report.py     header and location of every result
part.py       results and phases of a part of `bench.gpu`, kept as they come
services.py   stacks as child processes, whole or without sampler and trainer
models.py     base models with random weights
tenants.py    the operator's HTTP key of a stack
load/         tasks, and stand-ins that take injected times
measures/     stage times, processor time and memory
"""

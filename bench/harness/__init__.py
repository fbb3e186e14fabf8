"""What benchmarks share and is none itself: reports, servers as child processes, stand-ins, and what is overheard of a stack.

report.py    what every result begins with, and where it goes
services.py  NATS, PostgreSQL, scheduler and environments as child processes
tasks.py     tasks of the injected kind: submitted, and awaited
standins.py  a sampler and a trainer that take injected times
injected.py  those times
waiting.py   an environment that waits as long as each reply says
tap.py       when which turn was where, from a stack's messages
timeline.py  what follows from it for users and for owners of accelerators
groups.py    contexts of groups
stages.py    how long a step is with sampler, environment and trainer
cores.py     who takes the processor's cores
usage.py     what processes have used
models.py    base models with random weights
scheduler_costs.py  one admission and one noted step, rolled back
recovery.py  the table of recoveries
"""

"""What is measured of a stack.

tap.py              stage times of turns, from a stack's messages
timeline.py         utilization and latencies from stage times
stages.py           a step's time in sampler, environment and trainer
cores.py            shares of the processor's cores
usage.py            processor time and memory of processes
memory.py           memory that processes alone have, without libraries
stalls.py           turns of an event loop that take long
scheduler_costs.py  one admission and one noted step, rolled back
"""

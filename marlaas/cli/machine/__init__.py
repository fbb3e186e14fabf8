"""Commands for a stack, typed where it runs.

init.py        what a stack needs before its first start
stack.py       start, stop, inspect, benchmark
containers.py  what docker-compose.yml runs before its services
"""

"""Commands for a stack, run on its machine.

stack.py       prepare, start, stop, inspect, benchmark
containers.py  commands that docker-compose.yml runs before its services
"""

"""Commands for a stack, typed where it runs.

stack.py       prepare, start, stop, inspect, benchmark
containers.py  what docker-compose.yml runs before its services
"""

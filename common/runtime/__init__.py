"""A service's process: start, runners, end (service), health and its endpoints, settings from the environment, structured logs, cores.

lives.py    starts and ends of a process, kept in NATS · garbage.py rarer garbage collection · output.py what a process prints
"""

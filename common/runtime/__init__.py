"""A service's process: start, runners, end (service), health and its endpoints, settings from the environment, structured logs.

lives.py    starts and ends of a process, kept in NATS · process.py its cores and garbage · output.py what a process prints
"""

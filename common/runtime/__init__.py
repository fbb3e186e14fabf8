"""Process of a service: start, tasks and shutdown (service), health and its endpoints, settings from the environment, structured logs.

lives.py    starts and ends of a process, stored in NATS · process.py its cores and garbage collection · output.py a command's output
"""

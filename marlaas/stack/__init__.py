"""A stack on one machine: what belongs to it, its start and its end.

control.py             the plan of a stack; starting, following and stopping it
supervised_process.py  one process: started, watched, started again when it dies
servers.py             NATS and PostgreSQL as commands and addresses
state_files.py         what the supervisor writes of itself, and who reads it
placement.py           cores and GPUs of each process
os_processes.py        finding, signalling and ending processes
"""

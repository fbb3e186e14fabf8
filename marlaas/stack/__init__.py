"""The one-machine stack.

control.py             plan, start and stop
supervised_process.py  one process: started, watched, restarted when it dies
servers.py             NATS and PostgreSQL as commands and addresses
state_files.py         the supervisor's plan, state and lock
placement.py           cores and GPUs of each process
os_processes.py        finding, signalling and ending processes
"""

"""The one-machine stack.

control.py             plan, start and stop
first_start.py         what it needs before its first start: packages, keys, passwords and folders
keys.py                folder of keys, NATS's configuration about them, and whose its streams are
supervised_process.py  one process: started, watched, restarted when it dies
servers.py             NATS and PostgreSQL as commands and addresses
state_files.py         the supervisor's plan, state and lock; the gateway's address
database_folder.py     PostgreSQL's folder
placement.py           samplers and trainers, with the cores and GPUs of each
preloading.py          processes that import once, and fork services
os_processes.py        finding, signalling and ending processes
"""

"""The one-machine stack.

control.py             plan, start and stop
first_start.py         prerequisites of the first start: packages, keys, passwords and folders
keys.py                folder of keys, NATS's account configuration, and the owner of its streams
supervised_process.py  one process: started, monitored, restarted when it dies
servers.py             NATS and PostgreSQL as commands and addresses
state_files.py         the supervisor's plan, state and lock; the gateway's address
database_folder.py     PostgreSQL's folder
placement.py           samplers and trainers, with the cores and GPUs of each, and what the machine lacks for them
devices.py             GPUs, and builds of PyTorch and vLLM
preloading.py          processes that import once, and fork services
os_processes.py        finding, signalling and ending processes
"""

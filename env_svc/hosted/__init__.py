"""Environments in processes and virtual environments of their own, so that their dependencies cannot clash with ours.

config.py         which there are: a TOML file of the deployment
wire.py           the frames that both sides exchange
host.py           the process: `python -m env_svc.hosted.host module:attribute`, run by the environment's own interpreter
process.py        one such process from the outside: started when it is needed, started again when it dies
pool.py           all of them, and whose call goes next
"""

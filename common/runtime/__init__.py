"""The skeleton of every service's process.

service.py   connect, run until a signal or Fatal, report the replica, end in order
health.py    /metrics, /healthz and /readyz
settings.py  settings from environment variables
logs.py      structured logs
"""

"""What every service's process is made of: settings from the environment, logs, health and metrics over HTTP, and its end.

service.py   the skeleton: signals, readiness, the order in which things end
settings.py  settings from environment variables
logs.py      structured logs
"""

"""The environment service: replicas.py, as a process; sandboxes.py, those that this machine has."""

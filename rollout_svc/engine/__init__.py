"""The engine's process, as vLLM starts it: what it has from the service.

inherited.py   the service's end, the locks of a shared accelerator, and a file for the reason of a failure
"""

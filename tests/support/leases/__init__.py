"""Executors on an accelerator: executables.py, without a device; process.py, in processes that tests kill."""

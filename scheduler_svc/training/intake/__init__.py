"""A submission, until its task runs.

examination.py             every reason against it
catalog.py                 Catalog: what the deployment has for a task
preview.py                 what it would become, without submitting
environment_resolution.py  the queue of a task's environment, and the check of its options
environment_checks.py      answers to these checks
warm_start.py              adapter of version 0, from another task
"""

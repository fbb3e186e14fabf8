"""What a tenant has besides tasks.

access.py            accounts, keys, and what gateways know of them
aliases.py           what rollout replicas know of aliases
limits.py            limits at a submission
packages.py          packages and files: uploads, checks, deletions
files.py             rows of files, checked
own_environments.py  which package a task plays
"""

"""Aliases: names for versions, each of which holds its version.

jobs.py           jobs that set and delete them
queries.py        their rows
announced.py      what rollout replicas and gateways know of them
kept_adapters.py  adapters that outlive the rules of their task
answers.py        answers to asks
"""

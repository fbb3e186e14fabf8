"""One message each, in one transaction: what users ask for, what came back, and what could not be handled.

jobs.py          submit, cancel, pause, resume
deletion.py      delete, prune
settlement.py    environments checked, trajectories scored, weights updated
dead_letters.py  messages that were given up: settled, and sent again on request
"""

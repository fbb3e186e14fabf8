"""Results of the other services' work.

environment_checks.py  environments checked
scores.py              trajectories scored, and groups past their deadlines
weight_updates.py      steps trained
served.py              ends of served requests
dead_letters.py        dead letters: settled, and resent on request
"""

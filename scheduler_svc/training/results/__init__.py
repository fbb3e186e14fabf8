"""Results of the other services' work.

scores.py          trajectories scored, and groups past their deadlines
weight_updates.py  steps trained
dead_letters.py    dead letters: settled, and resent on request
"""

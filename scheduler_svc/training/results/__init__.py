"""Results of the other services' work.

scores.py          scored trajectories, and groups past their deadlines
weight_updates.py  trained steps
dead_letters.py    dead letters: settled, and resent on request
"""

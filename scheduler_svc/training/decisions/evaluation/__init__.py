"""Evaluations of versions.

plan.py          which versions are evaluated, on which prompts
results.py       their results by protocol, differences between versions, and progress
best_version.py  which version is the best
"""

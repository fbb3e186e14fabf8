"""Queries on who goes next.

candidates.py  tasks that wait, in fair order
shares.py      virtual times, and work in flight
waiting.py     what one task waits for
"""

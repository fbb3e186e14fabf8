"""Sharing of a resource among tenants and their tasks, by weight.

fair_queue.py  chooses the item to be served next; pure
fair_slots.py  slots of a resource, granted in that order
"""

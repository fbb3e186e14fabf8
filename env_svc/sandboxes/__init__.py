"""Sandboxes: where code runs that a policy wrote.

Consumes  Python source and limits
Produces  what it printed, how it ended
Owns      interpreters, processes and containers; each run gets a fresh one and shares nothing with another.
"""

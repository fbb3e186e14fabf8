"""PostgreSQL: the schema, the door to it, and every statement.

database.py  connections, transactions, and the lock that one replica holds
tables.py    the schema
views.py     its public face
states.py    states of tasks, groups, trajectories and steps
queries/     a function per sentence of the domain
"""

"""Periodic work beside the handlers.

outbox.py    publishes the rows of the outbox; checks that PostgreSQL and NATS have the same history
deletion/    deletes superseded data, ended tasks and tenants; raises an alarm before the blob store is full
replicas.py  live replicas and their capacity; deaths of services, as events
stalls.py    resends lost steps, warns about stalled tasks; measures time since the last infrastructure disturbance
"""

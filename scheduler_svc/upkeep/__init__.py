"""Periodic work beside the handlers.

outbox.py    publishes the rows of the outbox; whether PostgreSQL and NATS have the same history
deletion/    deletes superseded data, ended tasks and tenants; alarm before the blob store is full
replicas.py  live replicas and their capacity; deaths of services, as events
stalls.py    lost steps are resent, tasks without progress warned about; time since the last infrastructure disturbance
"""

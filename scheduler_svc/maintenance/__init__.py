"""Periodic work beside the handlers.

outbox_relay.py       publishes the rows of the outbox
garbage_collector.py  deletes superseded messages and blobs from NATS
budgets.py            warns, pauses and resumes by tenants' budgets
step_rescuer.py       resends lost steps
replica_registry.py   live replicas and their capacity
stability.py          time since the last infrastructure disturbance
stalls.py             warnings about tasks without progress
status_bucket.py      room in the key-value bucket of statuses
store_alarm.py        alarm before the blob store is full
store_consistency.py  whether PostgreSQL and NATS have the same history
"""

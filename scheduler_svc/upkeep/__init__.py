"""Periodic work beside the handlers.

outbox_relay.py       publishes the rows of the outbox
deletion/             deletes superseded data, ended tasks and tenants
step_rescuer.py       resends lost steps
replicas.py           live replicas and their capacity; deaths of services, as events
stability.py          time since the last infrastructure disturbance
stalls.py             warnings about tasks without progress
store_alarm.py        alarm before the blob store is full
store_consistency.py  whether PostgreSQL and NATS have the same history
"""

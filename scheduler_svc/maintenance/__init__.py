"""What runs beside the handlers, again and again.

outbox_relay.py       rows of the outbox become messages
garbage_collector.py  deletes from NATS what no step needs any more
step_rescuer.py       sends lost steps again
replica_registry.py   what the replicas say they are and can take
stability.py          how long the scheduler has watched without a disturbance
stalls.py             warnings about tasks that make no progress
store_alarm.py        the alarm before the blob store is full
store_consistency.py  whether PostgreSQL and NATS tell of the same past
"""

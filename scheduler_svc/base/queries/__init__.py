"""SQL of rows that every subject writes or reads; each subject has its own `queries` for the rest.

A state change is one statement guarded by the state that it leaves. Rows are locked in one order, so that transactions
cannot deadlock: tasks by id, then tenants by id. Groups, members and steps are changed only under their task's lock.

outbox.py              messages that a transaction posts
deleted.py             deleted tasks: their ids and what they consumed
webhook_deliveries.py  events that webhooks wait for
"""

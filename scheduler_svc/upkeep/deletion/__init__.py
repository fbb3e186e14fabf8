"""Deletion of what no task or tenant needs any more.

deletion.py           jobs: delete, prune, delete-tenant; a task's rows
garbage_collector.py  superseded messages and blobs
storage.py            rows of stored blobs: which a task needs, and which a step has superseded; alarm
retention.py          ended tasks, after their tenant's days
tenant_deletion.py    deleted tenants
sweeps.py             statuses, HTTP keys and requests that NATS keeps too long
"""

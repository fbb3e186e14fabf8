"""Deletion of data that no task or tenant needs.

deletion.py           jobs: delete, prune, delete-tenant; a task's rows
garbage_collector.py  superseded messages and blobs
storage.py            rows of stored blobs: needed and superseded ones; store alarm
retention.py          ended tasks, after their tenant's retention days
tenant_deletion.py    deleted tenants
sweeps.py             statuses, HTTP keys and requests that NATS keeps too long
"""

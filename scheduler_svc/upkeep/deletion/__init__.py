"""Periodic deletion of what no task or tenant needs any more.

garbage_collector.py  superseded messages and blobs
needed_blobs.py       which blobs a task needs, and which a step has superseded
serving_requests.py   requests to deleted versions
retention.py          ended tasks, after their tenant's days
tenant_deletion.py    deleted tenants
packages.py           abandoned and refused uploads
status_bucket.py      statuses, where their bucket is nearly full
http_keys.py          entries of HTTP keys that ended
"""

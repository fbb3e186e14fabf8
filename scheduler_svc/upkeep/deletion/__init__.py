"""Deletion of what no task or tenant needs any more.

jobs.py               jobs: delete, prune, delete-tenant · deletion.py a task's rows
garbage_collector.py  superseded messages and blobs
needed_blobs.py       which blobs a task needs, and which a step has superseded
storage.py            rows of stored blobs
serving_requests.py   requests to deleted versions
retention.py          ended tasks, after their tenant's days · expiry.py their rows
tenant_deletion.py    deleted tenants
status_bucket.py      statuses, if their bucket is nearly full
http_keys.py          entries of HTTP keys that ended
"""

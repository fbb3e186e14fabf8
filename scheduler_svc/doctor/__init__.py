"""Checks the invariants of a running stack: `python -m scheduler_svc.doctor`, or `marlaas doctor`.

Reads PostgreSQL, the streams and the blob store, and changes nothing. Each rule is a sentence; the report lists its violations.

    database_rules.py  PostgreSQL alone: one SQL query per rule, whose rows are its violations
    stream_rules.py    NATS's streams and status bucket against PostgreSQL
    blob_rules.py      the blob store against PostgreSQL
    key_rules.py       files of keys, and NATS's accounts against PostgreSQL; needs the folder of signing keys
    runner.py          runs all rules, twice if one is broken, since a transaction in flight may look like a violation; prints the report
    violation.py       one violation
"""

"""Says whether everything that must always hold does: `python -m scheduler_svc.doctor`, or `marlaas doctor`.

Reads PostgreSQL, the streams and the blob store, and changes nothing. Each rule is a sentence; what breaks it is listed.

    database_rules.py  what PostgreSQL alone can say: one SQL query a sentence, whose rows are what is wrong
    stream_rules.py    what NATS holds, against PostgreSQL
    blob_rules.py      the blob store, against PostgreSQL
    runner.py          all of it, twice where something is wrong: a change under way is not a fault
"""

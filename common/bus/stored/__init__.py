"""What NATS stores.

declarations.py   streams, buckets and consumers
stream_reader.py  messages, read without being consumed, and their deletion
own_jobs.py       tenants' streams of jobs
key_value.py      values that several processes share
snapshots.py      whole streams as files
erasure.py        deletion of messages whose bytes must not stay
"""

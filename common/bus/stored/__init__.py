"""Stored data in NATS.

declarations.py   streams, buckets and consumers
stream_reader.py  reading messages without consuming them; deleting them, and erasing their bytes
key_value.py      values that several processes share
snapshots.py      whole streams as files
"""

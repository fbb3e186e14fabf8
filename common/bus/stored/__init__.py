"""What NATS stores.

declarations.py   streams, buckets and consumers
stream_reader.py  messages, read without being consumed; their deletion, also of bytes that must not stay
key_value.py      values that several processes share
snapshots.py      whole streams as files
"""

"""An operator's actions on tenants' accounts and keys. The signing keys are in the operator's folder; no service has them.

recording.py   PostgreSQL's records of accounts and keys, read and changed through the scheduler
accounts.py    tokens of accounts, synchronization from PostgreSQL to NATS, and deletion of tenants with their accounts
keys.py        keys made, given to their holders, rotated and revoked
stored_streams.py   all streams saved to a folder, and restored from it

Each command records in PostgreSQL first, then writes the holder's file, then updates NATS. All steps may be repeated, so an interrupted
command is completed by repeating it.
"""

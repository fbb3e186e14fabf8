"""What an operator does with tenants' accounts and keys. The signing keys are in the operator's folder; no service has them.

recording.py   what PostgreSQL has of accounts and keys, read and changed through the scheduler
accounts.py    tokens of accounts, NATS made to agree with PostgreSQL, and tenants deleted with their accounts
keys.py        keys made, given to their holders, rotated and revoked
stored_streams.py   all streams saved to a folder, and restored from it

Each command records in PostgreSQL first, then writes the holder's file, then tells NATS. All steps may be repeated, so that a command
that was interrupted is completed by giving it again.
"""

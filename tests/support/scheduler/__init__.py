"""A running scheduler, and what its tests and its users' tests do to it.

stages.py                the other three services, with invented scores and adapters
finished.py              a world that has finished its tasks, and copies of it
keyed_worlds.py          fixtures: the same on a server that wants keys
asking.py                questions, as clients send them
canaries.py              a text in every field, and the places that keep it
dead_letters.py          dead letters, published and recorded
executors.py             executors that follow orders and compute nothing
statements.py            SQL that a test runs
shared_accelerator.py    rows of an accelerator that two pools share
retention.py             days that pass, and blobs that remain
tenant_settings.py       settings of a tenant
uploads.py               uploads of packages
webhooks.py              rules that permit this machine's addresses
"""

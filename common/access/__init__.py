"""Permissions on NATS: access tables in code, and the keys that carry them.

    rows        one line of a table, and the JetStream requests that it permits
    services    permissions of each service, by subject, stream and consumer
    roles       permissions of each role of a tenant's key
    keys        keys (NATS and HTTP) and signed tokens; wraps nkeys
    claims      tokens of the operator, accounts and users
    credentials creds files, and the same in memory
    folder      the operator's signing keys, and NATS's account configuration

The NATS server enforces these tables; no code checks them a second time. `docs/subjects.md` is generated from them.
"""

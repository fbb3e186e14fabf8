"""Who may say and hear what on NATS: tables in code, and the keys that carry them.

    rows        one line of a table, and the JetStream requests that it stands for
    services    what each service does, by subject, stream and consumer
    roles       what each role of a tenant's key may do
    keys        keys, for HTTP too, and signed tokens, the door to nkeys
    claims      tokens of the operator, accounts and users
    credentials creds files, and the same in memory
    folder      the operator's signing keys, and what NATS must know of them

The server enforces these tables; nothing checks them a second time. `docs/subjects.md` is made from them.
"""

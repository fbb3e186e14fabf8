"""PostgreSQL: schema, connections, and every statement.

database.py     connections, transactions, and advisory locks
transaction.py  a transaction with its outbox
tables/         the schema
views.py        its public views
access.py       which role may do what with which table or view
roles.py        makes the roles; tenant_roles.py those of tenants
states.py       states of tasks, groups, trajectories and steps
queries/        every SQL statement of the scheduler's work
billing/        prices and invoices
tenancy/        accounts and keys, and the audit
asked/          SQL that only reads, for asks
"""

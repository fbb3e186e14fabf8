"""Every SQL statement of the scheduler: one function for each operation, on the connection of the caller's transaction.

A state change is one statement guarded by the state that it leaves. Rows are locked in one order, so that transactions
cannot deadlock: tasks by id, then tenants by id. Groups, members and steps are changed only under their task's lock.

Layout    training/ · fairness/: who goes next · tenancy/ · retention/ · outbox, dead_letters, replicas: messages · sql/: statements
"""

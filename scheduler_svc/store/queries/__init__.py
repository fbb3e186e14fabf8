"""Every SQL statement of the scheduler: a function per sentence of the domain, each on a connection that the caller
holds a transaction on. A state is left only by a statement that names it.

Rows are locked in one order, so that transactions cannot wait for each other in a circle: tasks by id, then tenants by id.
Groups, members and steps are changed only by whoever holds their task.
"""

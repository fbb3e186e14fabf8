"""PostgreSQL's roles.

access.py        which role may do what with which table or view
roles.py         makes the roles, and gives them their rights
tenant_roles.py  roles of tenants, which read their own rows
"""

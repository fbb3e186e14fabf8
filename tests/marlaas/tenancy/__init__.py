"""The operator's commands for tenants.

tenants and keys           test_keys.py
many keys while jobs flow  test_many_keys.py
deletion of a tenant       test_deletion.py
`audit`                    test_audit.py

Helpers: commands.py, which runs them or kills them.
"""

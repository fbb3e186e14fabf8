"""PostgreSQL.

migrations and tables agree   test_schema.py
rights of roles               test_access.py
sessions of tenants           test_tenant_sessions.py
audit                         test_audit.py
ledger                        test_ledger.py
numbers of events             test_event_numbers.py
stored specs                  test_stored_specs.py
statements beside SQLAlchemy  test_statement.py
plans of frequent statements  test_plans.py
"""

"""What docker-compose.yml runs before its services.

keys and passwords in the volumes          test_preparation.py
the operator's key and the first tenant's  test_accounts.py
"""

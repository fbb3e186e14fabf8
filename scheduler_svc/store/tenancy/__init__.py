"""Queries on accounts and keys of tenants."""

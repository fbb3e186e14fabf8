"""Queries on accounts and keys of tenants, and the audit of what they do."""

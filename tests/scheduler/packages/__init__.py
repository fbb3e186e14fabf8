"""Packages that tenants upload, in a running scheduler."""

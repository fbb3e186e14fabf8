"""Environments that a tenant uploads."""

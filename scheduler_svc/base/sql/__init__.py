"""Statements that are compiled once, and their parameters."""

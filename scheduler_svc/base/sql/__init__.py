"""Statements that are compiled once (statement), their parameters (parameters), and time by the clock of a pool (pool_time)."""

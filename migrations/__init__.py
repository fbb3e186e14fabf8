"""Alembic migrations of the scheduler's database. `python -m scheduler_svc.migrate` applies them."""

"""TODO scheduler_svc/uploads."""

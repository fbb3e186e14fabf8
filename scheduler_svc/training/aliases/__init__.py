"""TODO scheduler_svc/training/aliases."""

"""TODO gateway_svc/reading."""

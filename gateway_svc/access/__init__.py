"""TODO gateway_svc/access."""

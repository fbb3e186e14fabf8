"""TODO trainer_svc/device."""

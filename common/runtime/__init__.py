"""A service's process: start, runners and end (service), health and its endpoints, settings from the environment, structured logs."""

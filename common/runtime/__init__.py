"""A service's process: start, runners, end (service), health and its endpoints, settings from the environment, structured logs, cores."""

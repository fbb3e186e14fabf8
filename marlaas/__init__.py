"""The user's side: SDK, command line, and the one-machine stack. Talks to services through NATS like anyone else."""

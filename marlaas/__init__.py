"""The user's side: SDK, command line, and the one-machine stack. A client of NATS like any other."""

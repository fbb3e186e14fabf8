"""Environments of other systems behind this service's contract. Each runs hosted, in a virtual environment of its own.

Consumes  tasksets of the package `verifiers`, and OpenEnv servers
Produces  environments of the contract, whose states are the episode's history
Owns      episodes and sessions that wait for a reply; a lost one is replayed from its state
Layout    verifiers.py with verifiers_episode.py (one episode) and verifiers_tools.py (its tool servers);
          openenv.py with openenv_sessions.py (the WebSocket protocol)
"""

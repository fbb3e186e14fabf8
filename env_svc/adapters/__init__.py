"""Environments that others wrote for other systems, behind the contract of ours. Each runs hosted, in a virtual environment of its own.

verifiers.py           tasksets of the package `verifiers`: what can be played, and how an episode travels
verifiers_episode.py   one of its episodes, held where it waits for the policy
verifiers_tools.py     its tool servers, called in this process
openenv.py             OpenEnv servers
openenv_sessions.py    sessions with them, over their WebSocket protocol
"""

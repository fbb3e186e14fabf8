"""Environments that others wrote for other systems, behind the contract of ours. Each runs hosted, in a virtual environment of its own.

verifiers.py  tasksets of the package `verifiers`
openenv.py    OpenEnv servers, over their WebSocket protocol
"""

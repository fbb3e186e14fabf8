"""Serving under latency goals on the engines that sample rollouts.

lender.py            each second: figures, the room that they leave, stalled turns handed back
lending.py           rollout sequences that a replica takes
figures.py           counts of the engine's process, which the service reads from a file
"""

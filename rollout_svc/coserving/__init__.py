"""Serving under latency goals on the engines that sample rollouts.

figures.py           counts of the engine's process, which the service reads from a file
"""

"""Serving under latency goals on the engines that sample rollouts."""

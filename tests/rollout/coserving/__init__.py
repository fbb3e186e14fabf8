"""Serving under latency goals on the engines that sample rollouts.

rollout sequences that a replica takes          test_lending.py
stalled turns handed back, and requests for more  test_lender.py
"""

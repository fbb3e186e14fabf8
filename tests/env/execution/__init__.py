"""Building and running environments.

environments are built beside the event loop        test_executor.py
worker processes: results, kills, crashes, waiting  test_workers.py
weights of reward components                        test_rewards.py
"""

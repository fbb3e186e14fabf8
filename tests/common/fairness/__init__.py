"""Fair queues.

order: by tenant, then by task, weighted  test_fair_queue.py
"""

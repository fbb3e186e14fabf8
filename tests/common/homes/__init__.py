"""Queues of executors on several accelerators.

when an executor reads another's queue       test_reading.py
no queue without a reader, over a real NATS  test_queues.py
"""

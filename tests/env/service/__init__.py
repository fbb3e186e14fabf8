"""Episodes over a real NATS.

open, sample, turn, scored          test_episodes.py
checks before a task is accepted    test_checks.py
failures, redelivery, cancellation  test_failures.py

Helpers: desk.py, the scheduler's and the rollout service's side.
"""

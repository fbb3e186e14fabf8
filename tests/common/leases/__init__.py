"""Executors of a shared accelerator: orders, leases, locks, memory.

table of an executor's next steps           test_decisions.py
orders: lease, compute.lock and memory      test_follower.py
state moves under compute.lock              test_moves.py
locks are free once their process has died  test_locks.py
executors killed at any moment              test_killing.py
a holder without NATS parks itself          test_unreachable.py
when a process counts as hung               test_watchdog.py
reports at each change                      test_reports.py
bytes that a park has freed                 test_freed_bytes.py
clocks of pools while parked                test_clocks.py
what the pools file says of an executor     test_executor.py
executors with their services' keys         test_keyed.py
"""

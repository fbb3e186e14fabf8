"""Shared accelerators: the leader and its executors.

slices, orders, bookings, clocks             test_leader.py
the same with real leases, locks and queues  test_with_executors.py
fair shares, in simulated histories          test_claims.py
kills at each decision                       test_crashes.py
a holder's killed process                    test_killed_holder.py
executors that die, hang or lie              test_failures.py
lost answers                                 test_lost_answers.py
executors that operators hold                test_holds.py
what clients and operators see and order     test_door.py
homes of tasks on two accelerators           test_homes.py
moves that operators have measured           test_measured.py
what a trainer's slice has scored            test_scored.py
deletion of old slices                       test_retention.py
rows that are read                           test_rows_read.py

Helpers: pool_workers.py (samplers of two pools), reports.py.
"""

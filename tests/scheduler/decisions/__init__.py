"""Pure decisions.

Tasks and steps:
  pace, fairness, capacity, batching          test_decisions.py
  minimum shares beside slow environments     test_min_share.py
  more sequences in flight than decode        test_oversubscription.py
  scheduling policies                         test_scheduling_policy.py
  why a task waits                            test_waiting.py
  warnings                                    test_task_warnings.py
  `@best`                                     test_best_version.py
  expiry                                      test_expiry.py
  who pays                                    test_billing.py
  budgets at their bounds                     test_budgets.py

Accelerators:
  who computes next                           test_slicing.py
  moves, tiers, booking                       test_accelerators.py
  properties for any input                    test_accelerator_properties.py
  placement, and whether sharing is worth it  test_placement.py
  what sharing should save                    test_advice.py
  how long a step needs the sampler           test_occupancy.py
  clocks of pools                             test_pool_times.py
  homes among replicas                        test_homes.py

Helpers: accelerators.py (executors), watching.py (a controller with its clock).
"""

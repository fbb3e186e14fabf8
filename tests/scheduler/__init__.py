"""The scheduler, with real PostgreSQL and NATS.

a task from submission to its end                test_life_of_a_task.py
isolation between tasks                          test_isolation.py
every kind of delivery, interleaved              test_interleavings.py
candidates of admission, by indexes              test_candidates.py
statements of a step                             test_step_statements.py
deadlines and clocks                             test_clocks.py
samples in their stream                          test_samples.py
passwords                                        test_secrets.py
a deleted tenant                                 test_tenant_deletion.py

Folders:
  leaders of shared accelerators                   accelerators/
  questions and their answers                      ask/
  prices, budgets, invoices                        billing/
  pure decisions                                   decisions/
  the doctor and its rules                         doctor/
  jobs, limits, dead letters, deletion             handlers/
  evaluations, ends, waiting                       lifecycle/
  garbage collection, retention, rescue, restores  maintenance/
  packages and files of tenants                    packages/
  tables, rights, plans                            store/
  webhooks                                         webhooks/

Helpers: gated.py (a trainer that waits), many_histories.py (programs of random histories), pool_times.py (clocks), wire.py (a silent
database).
"""

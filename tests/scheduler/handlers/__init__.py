"""Jobs and messages in a running scheduler.

accepted, rejected, cancelled, paused, resumed  test_jobs.py
order and bounds of intake                      test_job_intake.py
ids of other tenants' tasks                     test_foreign_ids.py
forged messages                                 test_beliefs.py
checks of environments                          test_environment_checks.py
limits of tenants                               test_limits.py
weights and settings of tenants                 test_tenant_settings.py
audit                                           test_audit.py
dead letters                                    test_dead_letters.py
delete and prune                                test_deletion.py
the same while tasks start and train            test_deletion_race.py
content of a deleted task                       test_erasure.py
"""

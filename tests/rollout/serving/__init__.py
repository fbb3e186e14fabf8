"""Served requests on a replica.

places of requests                     test_admission.py
beside rollouts, with the real engine  test_engine.py
preemption with steps in flight        test_scheduler.py
deadlines, and outcomes by goal        test_goals.py
streamed text                          test_reply.py
texts of single tokens                 test_token_texts.py
versions that aliases name             test_aliases.py
"""

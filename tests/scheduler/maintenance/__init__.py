"""Upkeep in a running scheduler.

garbage collection                  test_garbage_collector.py
retention by age                    test_retention.py
requests to versions                test_serving_requests.py
a full blob store                   test_full_store.py
steps whose message was lost        test_step_rescuer.py
the outbox, with a late NATS        test_outbox_relay.py
stores restored from older backups  test_store_consistency.py
bound of the status bucket          test_status_bucket.py
deaths of services                  test_deaths.py

Helpers: progress.py.
"""

"""The containers: built, started, killed, scaled, backed up. `make test-compose`.

a deployment, as docs/operations.md describes it  test_compose.py
deploy/backup.sh                                  test_backup.py

Helpers: deployment.py, jobs.py (tasks by a plain NATS client).
"""

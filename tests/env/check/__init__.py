"""The check of an environment before use.

`env_svc.check` and its verdicts  test_check.py
"""

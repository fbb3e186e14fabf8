"""Other frameworks' environments.

tasksets of verifiers                          test_verifiers.py
OpenEnv servers                                test_openenv.py
published environments, in their own packages  test_public_environments.py

Helpers: unplayable.py, tasksets that the adapter refuses.
"""

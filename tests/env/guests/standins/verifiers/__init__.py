"""The part of `verifiers` 0.4 that the adapter meets, for tests where the package itself is too heavy to install.

Names, signatures and what is raised are the package's; `tests/env/adapters/test_verifiers.py` passes with either.
"""

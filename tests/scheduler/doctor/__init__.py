"""The doctor: each rule is broken once, and each mutant of a rule caught.

every rule, on the finished world  test_doctor.py
rules about keys                   test_key_rules.py

Helpers: database_breakages.py, store_breakages.py, bucket_breakages.py and slice_breakages.py (violations); mutations.py (the program),
mutant.py, code_mutants.py and query_mutants.py (mutants).
"""

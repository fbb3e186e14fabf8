"""State between steps.

checkpoints                       test_checkpoint.py
versions without stored state     test_lineage.py
AdamW                             test_optimizer.py
cache of resident tasks           test_resident.py
skipped updates that fail a task  test_skips.py
"""

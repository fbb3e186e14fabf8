"""The trainer.

the handler over NATS                  test_service.py
bad batches, messages, numbers, disks  test_service_failures.py
seconds by task                        test_service_meter.py
a batch and its stored messages        test_batch.py
samples of steps                       test_samples.py
replay of recorded steps               test_replay.py
memory against its estimate            test_memory.py
errors of a device, by their texts     test_device_errors.py
a pool in bfloat16                     test_precision.py
merged models                          test_merge.py
every recipe, in two steps             test_recipes.py
parking between steps                  test_parking.py
memory that parking frees              test_parked_memory.py
the real process                       test_process.py

Folders:
  losses, advantages, steps              algorithm/
  adapters, packing, scores              model/
  checkpoints, lineage, residents        state/

Helpers: steps.py (tasks of every setting), lineages.py (steps in order), processes.py, parkable_process.py.
"""

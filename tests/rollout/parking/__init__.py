"""An engine that sleeps and wakes.

a parked sampler: what it keeps and returns  test_sampler.py
requests frozen in the middle                test_frozen.py
fetches of adapters beside parks             test_fetches.py
wrong weights after a wake                   test_checks.py
an engine that woke wrong                    test_wrong_state.py
a wake on a GPU that is full                 test_half_awake.py
cold starts that fail                        test_cold_start.py
bytes that it gives back                     test_freed.py
bytes that it reports                        test_sizes.py
work by tenant and task, and the gate        test_work.py

Helpers: sleeping.py (the engine), standing.py (one without vLLM), parked_work.py (its work), outside.py (the kernel's view),
faulty_worker.py, failing_worker.py.
"""

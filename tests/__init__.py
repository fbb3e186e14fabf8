"""Tests, by the folder of the code that they test; the rest by what they run. Helpers of several folders: support/.

Rules of this repository:
  size, names and imports of modules                       test_structure.py
  generated pages, examples and links                      test_docs.py
  pinned requirements                                      test_requirements.py
  what `make install` reports about a machine              test_check_machine.py
  the list of long tests                                   test_long_tests.py

Folders:
  messages, the bus, access, leases, fairness, task files  common/
  decisions, jobs, money, deletion, the doctor, asks       scheduler/
  environments, tools, sandboxes, packages                 env/
  engine, adapters, templates, parking                     rollout/
  steps, losses, checkpoints, replay                       trainer/
  the step against independent implementations             oracle/
  HTTP, OpenAI's API, the dashboard                        gateway/
  served requests through several replicas                 serving/
  command line, SDK, the one-machine stack                 marlaas/
  whole stacks with real models                            e2e/
  containers                                               compose/
  faults in a running stack                                chaos/
  benchmarks and their numbers                             bench/
  committed base models                                    models/

Plugins of pytest: long_tests.py (tests that may take long), tiers.py (slower tiers, run and recorded).
"""

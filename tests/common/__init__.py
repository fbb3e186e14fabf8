"""What the services share: messages, stores, task files, pools, processes.

Messages and stores:
  golden bytes of messages, and permitted changes   test_messages.py
  subject, body and headers agree                   test_agreement.py
  large bodies are read in turns of the event loop  test_turns.py
  blobs: complete, checked, never replaced          test_blobs.py
  streams saved and restored                        test_snapshots.py
  three NATS nodes, killed one at a time            test_cluster.py
  renewal of leases                                 test_heartbeats.py
  rows of files, in parts of any size               test_jsonl.py

Task files and pools:
  errors about a task file, settings or pools       test_spec.py
  defaults of a pool, and their origin              test_defaults.py
  shared accelerators in the pools file             test_accelerators.py
  revision of a pool's model                        test_model_files.py
  sentences for wrong values                        test_wrong_values.py
  size of values in users' bodies                   test_bounds.py

Texts and rewards:
  tool calls in text                                test_tool_calls.py
  notations of calls that templates print           test_tool_call_grammars.py
  reward shaping                                    test_shaping.py

Processes:
  crash points                                      test_crashpoints.py
  a process without signs of life is ended          test_guardian.py
  single-flight caches                              test_caches.py

Folders:
  keys and permissions                              access/
  publishing, consuming, redelivery                 bus/
  intervals and differences of evaluations          evaluation/
  order of a fair queue                             fairness/
  graders of files                                  graders/
  queues of executors on several accelerators       homes/
  executors of a shared accelerator                 leases/
  a service's process: cores, probes, logs          runtime/

Helpers: message_samples.py and ask_samples.py (one of each kind, as the golden bytes have it), cluster.py (three nodes).
"""

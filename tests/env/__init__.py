"""The environment service.

names, options, and errors about them         test_registry.py
names that a task may give                    test_allowed.py
one call of an environment, and its failures  test_calls.py
values from other libraries and encodings     test_borders.py
rows of files                                 test_rows.py
a whole replica as a process                  test_main.py
examples of docs/environments.md              test_docs.py
task files of examples/environments           test_examples.py

Folders:
  other frameworks' environments                adapters/
  shipped environments                          builtin/
  the check of an environment before use        check/
  building, workers, weights                    execution/
  environments made from files                  files/
  environments in processes of their own        hosted/
  packages of tenants                           packages/
  right and wrong programs in every sandbox     programs/
  sandboxes for code                            sandboxes/
  episodes over NATS                            service/
  tools                                         tools/

Helpers: toys.py (small environments), guests/ (environments of other frameworks).
"""

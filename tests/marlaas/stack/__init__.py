"""The one-machine stack.

start, supervision and end                        test_control.py
`init`                                            test_first_start.py
keys of its services                              test_keys.py
its gateway                                       test_gateways.py
services forked by one parent                     test_preloading.py
cores and GPUs                                    test_placement.py
the GPUs, and builds of packages                  test_devices.py
NATS's disk, as the supervisor sees it            test_servers.py
PostgreSQL's folder and passwords                 test_database_folder.py
`psql`, `database`                                test_database_access.py
deploy/shared-accelerator has the same executors  test_shared_accelerator_file.py

Helpers: plans.py, stacks of dummy services.
"""

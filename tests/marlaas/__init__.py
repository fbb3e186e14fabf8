"""The command line, the SDK, and what they start.

exit status and output of commands       test_cli.py
every verb against a real scheduler      test_verbs.py
the SDK                                  test_client.py
files, aliases and webhooks of a tenant  test_owned.py
`pools` and its verbs                    test_pools.py
`compare`                                test_comparison.py
`demo`                                   test_demo.py
`demo --compose`                         test_composition.py
`envs new`, `envs check`                 test_scaffold.py
memory estimate before `up`              test_memory.py
`doctor --machine`, and what `up` refuses test_host.py
TLS with an authority of one's own       test_tls.py
the wheel without the checkout           test_wheel.py

Folders:
  volumes of a deployment with containers  containers/
  the SDK by NATS                          door/
  the SDK by HTTP                          over_http/
  displays, tables, trackers               reporting/
  the one-machine stack                    stack/
  tenants and keys                         tenancy/

Helpers: tasks.py (a small task), verbs.py (the verbs' runs), transports.py (NATS and HTTP in turn), waiting.py, dummy_service.py.
"""

"""Packages of tenants.

wheels: what is read and refused                    test_wheel.py
the check of a new package                          test_check.py
processes of packages: whose, how many, until when  test_hosts.py
attempts to escape                                  test_escapes.py
the proxy to a tenant's addresses                   test_proxy.py
a replica that serves packages                      test_replica.py

Helpers: making.py, which builds wheels and plays them.
"""

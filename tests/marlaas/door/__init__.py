"""The SDK by NATS.

downloads of adapters                      test_download.py
events without loss or repetition          test_following.py
a client with a tenant's key               test_keys.py
a client with a tenant's permissions only  test_permissions.py
uploads of packages                        test_packages.py
reasons of a waiting task                  test_why.py
"""

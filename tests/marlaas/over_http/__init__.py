"""The SDK by HTTP.

the same results as by NATS                     test_parity.py
connections that break off                      test_cuts.py
errors about address, key, certificate, server  test_refusals.py
`chat`                                          test_chat.py

Helpers: cutting.py, a proxy that cuts connections.
"""

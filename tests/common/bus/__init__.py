"""The bus on a real NATS.

outcomes of a handler, and of its message          test_handling.py
leases of messages, and redelivery                 test_leases.py
requests are withdrawn when there is no room       test_withdrawal.py
full streams                                       test_full_streams.py
connections that fail; readers; the clock          test_connection.py
cancellation in one turn with the server's answer  test_cancellation.py
followed buckets whose entries were lost           test_followed.py
TLS                                                test_tls.py
"""

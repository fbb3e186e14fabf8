"""Keys and permissions, on real servers.

each user and family of subjects, as the tables say        test_matrix.py
a row for each stream, consumer and call; no right beyond  test_table.py
what nats-py publishes by itself                           test_protocol.py
keys: permitted, refused, revoked, ended                   test_keys.py
two tenants have no effect on each other                   test_apart.py
what a service does once NATS has refused it               test_refusals.py
stored messages that JetStream forwards                    test_sent_on.py
blobs with each reader's own key                           test_blobs.py
a cluster that wants keys                                  test_cluster.py

Helpers: calls.py (calls of the bus, from the syntax trees), doing.py (all that a row permits), raw_clients.py (connections without the
bus).
"""

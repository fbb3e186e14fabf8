"""Served requests, from the gateway to several replicas.

requests survive their replicas     test_streams.py
room of a process, and of a tenant  test_room.py
turns of tenants                    test_turns.py
latency goals                       test_goals.py
requests that would wait            test_places.py
"""

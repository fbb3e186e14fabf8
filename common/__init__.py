"""Contract between the services, and the infrastructure they share. Services import `common` and never each other.

Owns      code that at least two services need
Layout    streams, messages/, message_consistency, spec/, pools: the contract as data · bus/, blobs, heartbeats: access to NATS ·
          client_api/: operations of a client · runtime/: start, settings, health and shutdown of a process · evaluation: intervals and
          reports · goals: counts by latency goal · fairness/: shares of a resource · access/: keys and permissions ·
          accelerators/, leases/: executors that share an accelerator · homes/: queues of single replicas · graders/: graders of
          replies · task_states, limits, shaping, tool_calls · periodic, caches, errors, resilience/, formats/, passwords
"""

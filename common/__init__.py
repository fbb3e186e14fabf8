"""The contract between services, and what all of them run on. Services import `common` and never each other.

Owns      nothing: a thing lies here when two services need it
Layout    streams, messages/, message_consistency, spec/, pools: the contract as data · bus/, blobs, heartbeats: the door to NATS ·
          client_api/: what a client does · runtime/: a process's start, settings, health and end · evaluation: intervals and
          reports · fairness/: shares of a resource · access/: keys and what they may do · accelerators/, leases/: executors that share an
          accelerator · homes/: queues of single replicas · graders/: graders of replies · task_states, limits, shaping,
          tool_calls · periodic, caches, errors, resilience/, formats/, passwords
"""

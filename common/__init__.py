"""The contract between services, and what all of them run on. Services import `common` and never each other.

Owns      nothing: a thing lies here when two services need it
Layout    streams, messages/, agreement, spec/, pools: the contract as data · bus/, blobs, heartbeats: the door to NATS · door/: what a
          client does · runtime/: a process's start, settings, health and end · evaluation/: intervals, and what evaluations report ·
          fairness/: shares of a resource · task_states, limits, chunking, group_numbers, shaping, tool_calls · periodic, caches, errors,
          resilience/, formats/, passwords
"""

"""Sampler: prompts in, sampled turns out; requests to versions in, tokens out.

Consumes  prompts.sample.<queue>.*, prompts.serve.<pool>.*, cancels.<replica>, weight-updated.<pool>.*; blobs of adapters; the key-value
          buckets `tasks`, `aliases`, `pools` and `replicas`
Produces  trajectories.turn.*, replies.<gateway>; on a shared accelerator also as `common/leases`
Owns      the inference engine of one pool, and the adapters that it holds; nothing durable
Layout    top to bottom, imports go down only

    replica.py      puts a replica together
    accelerators/   samplers of a shared accelerator: the engine parked and woken
    coserving/      latency goals of served requests beside rollouts, and vLLM's schedulers
    service.py      handler of a request: turns of several members of one group, and the messages that answer it
    serving/        requests to versions, whose tokens are streamed
    adapters.py     adapter versions: load, check, share, evict; adapter_files.py their files
    engine/         vLLM: its process, arguments, streams, and kernels for a CPU
    text/           messages to tokens and back; tokens are appended, never re-encoded
    settings.py
"""

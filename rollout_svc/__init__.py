"""The sampler: prompts in, sampled turns out.

Consumes `prompts.sample.<pool>` and `weight-updated.<pool>`; watches the key-value bucket `tasks`.
Produces `trajectories.turn`.
Owns the inference engine of one pool, and the adapters it holds; nothing durable.

    service.py         the handler: one message, and the messages that answer it
    engine.py          the door to vLLM; engine_config.py its settings and arguments
    engine_process.py  start of the engine's process, which ends with this one
    chat.py            messages to tokens and back; tokens are appended, never re-encoded
    adapters.py        adapter versions: load, check, share, evict
    request_ids.py     request ids, seeds and message ids: the same for a redelivered message
    cpu/               what vLLM needs on a CPU
"""

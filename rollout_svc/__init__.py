"""The sampler: prompts in, sampled turns out.

Consumes `prompts.sample.<pool>` and `weight-updated.<pool>`; watches the key-value bucket `tasks`.
Produces `trajectories.turn`.
Owns the inference engine of one pool, and the adapters it holds; nothing durable.

    service.py         one message: which requests it means, and which messages answer it
    engine.py          the door to vLLM
    engine_process.py  how the engine's process starts and that it ends with this one
    chat.py            messages to tokens and back; tokens are appended, never encoded again
    adapters.py        which adapter versions the engine holds, who uses them, which go
    request_ids.py     request ids, seeds and message ids: the same for a message that comes again
    cpu/               what vLLM needs on a CPU
"""

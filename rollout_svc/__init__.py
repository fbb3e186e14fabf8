"""Sampler: prompts in, sampled turns out; requests to versions in, tokens out.

Consumes  prompts.sample.<pool>.*, prompts.serve.<pool>.*, cancels.<replica>, weight-updated.<pool>.*, and the key-value bucket `tasks`
Produces  trajectories.turn.*, replies.<gateway>
Owns      the inference engine of one pool, and the adapters that it holds; nothing durable
Layout    top to bottom, imports go down only

    parking/           samplers of a shared accelerator: the engine parked and woken
    service.py         handler of a request: turns of several members of one group, and the messages that answer it
    serving/           requests to versions, whose tokens are streamed
    adapters.py        adapter versions: load, check, share, evict
    chat.py            messages to tokens and back; tokens are appended, never re-encoded
    engine.py          the door to vLLM; engine_config.py its settings and arguments, engine_process.py its process
    engine_stream.py   one request's tokens as they are sampled; engine_scheduler.py gives it a place among rollouts
    engine_work.py     requests, their results, and what the engine did for whom
    sleeping/          in the processes of an engine that sleeps: its worker on a CPU, and checks while all else is frozen
    template/          what chat templates read and demand: variables, and turns with answers of tools
    token_bytes.py     bytes of single tokens, and how many characters one may stand for
    stop_strings.py    which token of a reply completes one of the task's stop strings
    request_ids.py     request ids, seeds and message ids: the same for a redelivered message
    cpu/               kernels that vLLM needs on a CPU
"""

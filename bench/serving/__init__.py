"""What serving through the HTTP door costs, and whether it is right: `python -m bench.serving NAME`.

Each writes bench/results/serving-NAME.json.

    text         streamed text, whole text and the decoding of all tokens are the same, cut at the first stop string
    latency      first token through HTTP against the engine called in its process
    streams      many streams through one gateway process, from a source of tokens
    greedy       answers of versions are those of transformers and PEFT with the adapter from `adapter.tar`
    disconnects  clients that go: their requests end in the engine, and the ledger has what they were given
    kills        the ledger is the sum of what clients were told, while engine, scheduler and gateway are killed
    contended    first tokens of one tenant beside a burst of another, rollouts of more adapters than have places, a slow reader
    failover     streams survive the death of the replica that samples them
    gateways     event streams and chats through three gateways behind nginx, each killed in turn
    continuity   versions of ended tasks are served through a sweep, deletions and a restart of every service

Layout    stacks.py a stack that serves · http.py a client · overheard.py tokens of each request, as NATS carried them
          standins/ replicas without an engine
"""

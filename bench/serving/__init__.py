"""What serving through the HTTP door costs: `python -m bench.serving NAME`.

Each writes bench/results/serving-NAME.json.

    latency      first token through HTTP against the engine called in its process
    streams      many streams through gateway processes, from a source of tokens
    contended    first tokens of one tenant beside a burst of another, rollouts of more adapters than have places, a slow reader

Layout    stacks.py a stack that serves · http.py a client · paced.py a source of tokens at a rate, in place of the engine
"""

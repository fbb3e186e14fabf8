"""Serving under latency goals on engines that sample rollouts: `python -m bench.coserving NAME,…`.

Each part writes bench/results/coserving-NAME.json, with rows for a table and checks against goals.

    arms       goals met and rollout tokens of ways to share an engine, at three loads; rollouts without serving; what the class costs
    full       a full KV cache, and rollouts of twice as many adapters as slots; a thousand rollouts alone and beside serving
    weights    bytes of an adapter version, its way to the first token, and gaps of streams while it loads
    http       on the real stack: a day on two samplers, one of which is stopped, and twice what serving alone attains
    simulator  a day on 14 simulated engines, if predictions of `arms` are near

Layout    engine.py engines of arms · scheduler.py an arm's `decide` inside them · load.py requests at their times, and rollouts beside them
          sums.py goals met, quiet rounds, checks · trace.py a day's requests
          stacks.py real services of `http` · simulated.py simulated engines, replicas and tasks
"""

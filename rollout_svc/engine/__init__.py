"""vLLM, which only this package imports.

engine.py            token ids in, token ids and their log-probabilities out, under any of many adapters
config.py            settings and arguments of the engine
process.py           its process: opened, watched, frozen, closed · start.py how it is started, and what it has from the service
scheduler.py         gives served requests a place among rollouts, and checks theirs while all else is frozen
stream.py            one request's tokens as they are sampled
work.py              requests, their ids and results, and what the engine did for whom
cpu/                 kernels that vLLM needs on a CPU
footprint.py         what a worker has on its device; vLLM finds it by name, as it does schedulers
"""

"""vLLM, which only this package imports.

engine.py            token ids in, token ids and their log-probabilities out, under any of many adapters
config.py            settings and arguments of the engine
process.py           its process: opened, watched, frozen, closed · start.py how it is started, and what it has from the service
scheduler.py         gives served requests a place among rollouts
stream.py            one request's tokens as they are sampled
work.py              requests, their results, and what the engine did for whom
cpu/                 kernels that vLLM needs on a CPU
sleeping/            in the processes of an engine that sleeps: its worker on a CPU, and checks while all else is frozen
"""

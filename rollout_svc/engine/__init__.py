"""The vLLM engine; no other package imports vLLM, except the schedulers in `coserving/`.

engine.py            token ids in, token ids and their log-probabilities out, under any of many adapters
config.py            settings and arguments of the engine
process.py           engine process: open, watch, freeze, close · start.py how it is started, and what it inherits from the service
profile.py           how fast the idle engine is: whether latency goals can be met
stream.py            one request's tokens, streamed as they are sampled
work.py              requests, their ids and results, and tokens and time per task
cpu/                 kernels that vLLM needs on a CPU
footprint.py         methods and device memory of a worker; vLLM loads it by name, as it does the schedulers
"""

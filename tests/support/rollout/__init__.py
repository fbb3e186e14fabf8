"""The sampler.

requests.py (to its engine), replicas.py (without one), books.py (an engine that only notes its adapters), model_free.py (vLLM's scheduler
alone), coserving.py (the one with latency goals alone).
"""

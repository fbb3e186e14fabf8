"""What runs in the processes of an engine that sleeps (`EngineSettings.sleeps`); vLLM finds it by name.

footprint.py   what a worker has on its device
cpu_worker.py  a worker for CPUs whose sleep frees memory
scheduler.py   checks run while all other requests are frozen
"""

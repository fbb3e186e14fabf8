"""The device of a trainer.

errors.py  errors of a device or disk, mapped to Fatal, Retry, Unavailable and NoMemory
memory.py  returns freed memory to the system; tensors in files that the kernel caches
meter.py   seconds of the device's thread, by task
"""

"""The device of a trainer.

errors.py          errors of a device or disk, mapped to Fatal, Retry, Unavailable and NoMemory
allocator.py       return of freed memory to the system on a CPU
mapped_tensors.py  tensors in files that the kernel caches
meter.py           seconds of the device's thread, by task
"""

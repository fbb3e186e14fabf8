"""The trainer: models.py, small and random; groups.py, of random tokens; batches.py, as the scheduler sends them."""

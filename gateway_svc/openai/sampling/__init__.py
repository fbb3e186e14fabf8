"""What the APIs of inference have in common.

settings.py  settings of sampling, seeds of choices, and tools for the chat template
choices.py   what one HTTP request asks of samplers, and its choices sampled concurrently by replicas
counting.py  usage, and why an answer ended
"""

"""Shared by the inference APIs.

settings.py  sampling settings, seeds of choices, and tools for the chat template
choices.py   prompts and choices of one HTTP request, sampled concurrently by replicas
counting.py  usage, and finish reasons
"""

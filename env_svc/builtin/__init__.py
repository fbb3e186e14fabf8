"""Environments that come with the service, registered as entry points in pyproject.toml like any other package's.

Consumes  the shipped files of data/, files of MARLAAS_ENV_DATA, and data sets of Hugging Face
Produces  prompts, turns and rewards by the contract
Owns      nothing between calls
Layout    a module per environment: calculator, code, compose, exact_words, math_problems, multi_hop, reasoning_gym,
          synthetic; code_grading.py, stated_answers.py and reply_filter.py are graders' pure parts
"""

"""The training loop's messages.

prompts.py       scheduler → environment service → sampler
trajectories.py  sampler → environment service → scheduler and trainer
steps.py         scheduler → trainer → scheduler and every rollout replica
"""

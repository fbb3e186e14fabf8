"""One optimizer step, from trajectories and rewards to a new version of an adapter.

step.py             the step
advantage.py        advantages from a group's shaped rewards
loss.py             the policy-gradient losses and their corrections
step_metrics.py     metrics of a step
sample_selection.py selects attempts of a step to keep for inspection
sample_store.py     stores these attempts
batched_steps.py    steps of several tasks in common forward and backward passes
"""

"""One optimizer step, from trajectories and rewards to a new version of an adapter.

step.py            the step
advantage.py       advantages from a group's rewards, relative to it and with penalties for length
loss.py            the policy-gradient losses and their corrections
step_metrics.py    metrics of a step
sample_selection.py which attempts of a step are kept to be looked at · sample_store.py stores them
batched_steps.py   steps of several tasks in common forward and backward passes
"""

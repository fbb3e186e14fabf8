"""One optimizer step, from trajectories and rewards to a new version of an adapter.

step.py            the step
advantage.py       advantages from a group's rewards
loss.py            the policy-gradient losses and their corrections
reward_shaping.py  rewards relative to the group, and penalties for length
step_metrics.py    metrics of a step
sample_selection.py which attempts of a step are kept to be looked at · sample_store.py stores them
batched_steps.py   steps of several tasks in common forward and backward passes
"""

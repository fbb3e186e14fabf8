"""The frozen base model with adapters: log-probabilities of packed batches under one adapter or several together.

policy.py          the base model on one device, with an adapter's parameters put in
weights.py         moves its tensors off the device, and back
lora.py            adapters inside the model's layers
batched_lora.py    several adapters in one forward pass
adapter.py         an adapter as one vector and as files
packing.py         trajectories into micro-batches, with shared prompts computed once
attention.py       attention over packed rows
attention_plan.py  spans of packed rows that attend together
layers.py          layers that are recomputed in the backward pass, and the last MLP at the scored positions only
head.py            log-probabilities without the logits of a whole micro-batch
memory.py          memory of the base model and of a step, estimated
"""

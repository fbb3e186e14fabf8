"""Learning, shown on the composition task: what seeds of RL gain on held-out programs, and what controls gain.

evaluation.py   a model's answers to the questions of every split, in transformers
intervals.py    means over seeds and prompts with bootstrap intervals, and pass@k
arms.py         the runs: tasks of the stack, and their controls
settings.py     the task's settings against each other, without the stack; a command of its own
rejection.py    the control that is trained without the stack: rejection fine-tuning
smollm.py       a pretrained model and a recipe in place of the composition task; a command of its own
logprobs.py     log-probabilities of the engine against those of transformers and PEFT
"""

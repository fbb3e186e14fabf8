"""The training step against implementations of others' making: one written from the papers on plain transformers and PEFT, and TRL's loss.

reference.py     the step, from the papers
covering.py      tables of settings in which every combination of a few fields occurs
settings.py      the fields that decide a step, and their values
comparison.py    the trainer's step beside the reference's
trl_loss.py      program that runs TRL's own loss, in TRL's environment

steps in every combination of fields  test_step.py
steps in bfloat16                     test_bfloat16.py
losses against TRL's                  test_trl.py
"""

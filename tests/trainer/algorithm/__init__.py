"""The maths of a step.

advantages                       test_advantage.py
losses and gradients             test_loss.py
losses against liger-kernel      test_loss_oracle.py
reward shaping                   test_reward_shaping.py
one optimizer step               test_step.py
settings of a step               test_step_settings.py
batched steps equal steps alone  test_batched_steps.py
updates that are not finite      test_skipped_updates.py
passes that only score           test_scoring.py
"""

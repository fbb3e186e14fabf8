"""Serving under latency goals on the engines that sample rollouts.

what runs in an engine step                     test_plan.py
how long a step takes                           test_step_time.py
blocks that rollouts keep under pressure        test_pressure.py
who enters, without a model                     test_entry.py
who runs and who is held, without a model       test_scheduler.py · with the real engine test_engine.py
counts of the engine's process                  test_figures.py
rollout sequences that a replica takes          test_lending.py
stalled turns handed back, requests for more    test_lender.py
"""

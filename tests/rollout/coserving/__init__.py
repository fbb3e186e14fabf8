"""Serving under latency goals.

which rollouts run in a step           test_plan.py
how long a step takes                  test_step_time.py
KV cache pressure                      test_pressure.py
counts that leave the engine           test_figures.py
vLLM's scheduler, without a model      test_scheduler.py
goals with the real engine             test_engine.py
"""

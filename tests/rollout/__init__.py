"""The sampler, with one real engine.

Engine and adapters:
  samples and log-probabilities against transformers  test_engine.py
  adapter versions on a replica                       test_adapters.py
  loading and eviction, step by step                  test_adapter_rules.py
  a pool in bfloat16                                  test_precision.py
  an engine that hangs or dies                        test_stuck_engine.py
  its process, spawned, and the accelerator's locks   test_inherited.py
  vLLM's own server beside the plugin                 test_served.py

Texts:
  templates to tokens                                 test_chat.py
  arguments of templates                              test_template.py
  control tokens in texts from outside                test_control_tokens.py
  answers of tools under odd templates                test_tool_turns.py
  stop strings                                        test_stop_strings.py

The service:
  the handler over NATS with the engine               test_service.py
  answers of the handler, without the engine          test_answers.py
  its process, and bad settings                       test_process.py
  episodes with a calculator                          test_calculator.py

Folders:
  kernels on CPUs                                     cpu/
  parking and waking                                  parking/
  served requests                                     serving/
  served requests with latency goals beside rollouts  coserving/

Helpers: engines.py (engines and their adapters), oracle.py (transformers with PEFT), stage.py (a replica at work), templates.py.
"""

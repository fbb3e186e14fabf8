"""A service's process.

cores of its threads                              test_cores.py
services that would admit strangers do not start  test_exposure.py
full garbage collections wait for rest            test_garbage.py
garbage collection of a real process              test_service.py
probes of health                                  test_health.py
unordered ends, known to the next process         test_lives.py
log lines that cannot be written                  test_logs.py
commands whose output was closed                  test_output.py
"""

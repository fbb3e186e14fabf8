"""Stages of a task's life.

evaluations                   test_evaluations.py
several protocols             test_protocols.py
void groups and failed tasks  test_termination.py
why a task waits              test_waiting.py

Helpers: evaluating.py.
"""

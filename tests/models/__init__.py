"""Committed base models.

the composition task's model and its knowledge  test_compose.py
"""

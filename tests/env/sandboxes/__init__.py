"""Sandboxes for code.

what a run reports, and which sandbox is chosen  test_sandboxes.py
attempts to escape or to exceed limits           test_escapes.py
"""

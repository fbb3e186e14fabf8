"""Graders as tasks give them.

accepted and refused graders, templates, formulas  test_graders.py
"""

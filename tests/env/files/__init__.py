"""Environments made from files.

order of rows, parts, graders  test_environment.py
"""

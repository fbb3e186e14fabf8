"""Packages and files that tenants upload, in a running scheduler.

packages  test_uploads.py
files     test_files.py
"""

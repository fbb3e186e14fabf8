"""Programs that are right, and mutants of them that are wrong, graded by `code` in every sandbox: `__main__.py`."""

"""Right programs and wrong mutants of them, graded by `code` in every sandbox: `__main__.py`."""

"""Right programs and wrong mutants of them, graded by `code` in every sandbox: `python -m tests.env.programs`.

corpus.py    the programs: statements.txt, library.txt, and pairs of them
mutants.py   programs that return another value

a sample of them in two sandboxes  test_programs.py
"""

"""Corpus of at least 300 distinct right programs: those of `statements.txt` and `library.txt`, each alone and in pairs.

Both files are cells, each a title after `#%%` and a program that defines `solve(n)`. Between them they use every statement of
the running Python's grammar and more than 40 modules of its standard library (`test_programs.py`). A pair calls
both of its cells, so that what one does to the interpreter meets the other.
"""

import ast
import itertools
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
PAIRS = 160
SINCE = re.compile(r", Python (\d+)\.(\d+)$")
"""Requirement in the title of a cell."""
ALONE = "from __future__"
"""A statement that must be a program's first: its cell is in no pair."""


@dataclass(frozen=True)
class Program:
    title: str
    source: str


def cells(name: str) -> list[Program]:
    """Cells of one file, without those that need a newer Python."""
    found: list[Program] = []
    for cell in (FOLDER / name).read_text().split("#%% ")[1:]:
        title, _, source = cell.partition("\n")
        since = SINCE.search(title)
        if since is None or sys.version_info[:2] >= (int(since[1]), int(since[2])):
            found.append(Program(title, source.strip() + "\n"))
    return found


def programs() -> list[Program]:
    """All programs: every cell alone, then pairs of a statement's and a module's cell."""
    statements, library = cells("statements.txt"), cells("library.txt")
    first = [one for one in statements if ALONE not in one.source]
    pairs = zip(itertools.cycle(first), itertools.cycle(library[::-1]), strict=False)
    return [*statements, *library, *(pair(a, b) for a, b in itertools.islice(pairs, PAIRS))]


def pair(a: Program, b: Program) -> Program:
    """A program that returns both results, for different arguments."""
    sources = [one.source.replace("solve", f"part_{place}") for place, one in enumerate((a, b))]
    both = "def solve(n):\n    return [part_0(n), part_1(n + 1), part_0(n + 2)]\n"
    return Program(f"{a.title} + {b.title}", "\n\n".join([*sources, both]))


def modules_of(all_programs: Sequence[Program]) -> set[str]:
    """Top-level modules that they import."""
    nodes = [node for program in all_programs for node in ast.walk(ast.parse(program.source))]
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    named = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    return {name.partition(".")[0] for name in plain | named} - {"__future__"}


def statements_of(all_programs: Sequence[Program]) -> set[type[ast.stmt]]:
    """Kinds of statement that they use."""
    nodes = (node for program in all_programs for node in ast.walk(ast.parse(program.source)))
    return {type(node) for node in nodes if isinstance(node, ast.stmt)}

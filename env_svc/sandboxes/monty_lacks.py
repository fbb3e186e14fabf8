"""Features of CPython that monty lacks, recognised by a program's error or by its source. Pure.

In doubt monty is blamed, not the program: a void attempt teaches a policy nothing, one graded wrong teaches it to avoid right
programs. Found with `python -m bench.programs monty`.
"""

import ast
import builtins
import importlib
import re
import sys
import types
from collections.abc import Iterator

MODULE = re.compile(r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'(; '[\w.]+' is not a package)?")
MODULE_ATTRIBUTE = re.compile(r"AttributeError: module '(?P<module>[\w.]+)' has no attribute '(?P<name>\w+)'")
IMPORTED = re.compile(r"ImportError: cannot import name '(?P<name>\w+)' from '(?P<module>[\w.]+)'.*")
ATTRIBUTE = re.compile(r"AttributeError: (?:type object )?'(?P<type>[\w.]+)' (?:object )?has no attribute '(?P<name>\w+)'")
NAME = re.compile(r"NameError: name '(?P<name>\w+)' is not defined")
SYNTAX = ("NotImplementedError", "SyntaxError", "TypeError", "RuntimeError", "ValueError")
SYNTAX_WORDS = ("not yet support", "not supported", "not implemented", "internal error in monty")
UNLIKE_CPYTHON = (
    re.compile(r"TypeError: 'list' object is not an iterator"),  # what a generator expression is here
    re.compile(r"TypeError: cannot convert '\w+' object to bytes"),  # of iterables of numbers
)
_HONOURED_NAMES = """
    init post_init repr str eq hash call getitem setitem contains iter next enter exit neg pos invert abs int float index round
    add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow matmul rmatmul
    and rand or ror xor rxor lshift rlshift rshift rrshift
"""
HONOURED = {f"__{name}__" for name in _HONOURED_NAMES.split()}
"""Special methods that monty calls as CPython does; it ignores the others without an error."""


def lacks(error: str) -> bool:
    """Whether an error's last line names a feature that CPython has and monty lacks."""
    return any(is_lacking(error) for is_lacking in (_syntax, _module, _module_attribute, _attribute, _name, _other))


def differs(source: str) -> str | None:
    """The part of a program that has another meaning in monty, without an error; None where none is known, or it does not parse."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return next(_differences(tree), None)


def _differences(tree: ast.AST) -> Iterator[str]:
    consumed = {id(node.args[0]) for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) == 1}
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef():
                yield from (f"line {one.lineno}: '{name}' is not honoured" for one in node.body for name in _special(one))
            case ast.GeneratorExp() if id(node) not in consumed:
                yield f"line {node.lineno}: a generator expression is a list"
            case ast.ExceptHandler(type=ast.Name(id="AssertionError"), name=str()):
                yield f"line {node.lineno}: the text of a failed assertion is another"
            case _:
                pass


def _special(statement: ast.stmt) -> list[str]:
    """Names that a class's statement defines, that CPython treats specially, and monty does not."""
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            names = [name]
        case ast.Assign(targets=targets):
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        case _:
            names = []
    return [name for name in names if _is_special(name) and name not in HONOURED]


def _is_special(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _syntax(error: str) -> bool:
    kind, _, text = error.partition(": ")
    return kind in SYNTAX and any(words in text.lower() for words in SYNTAX_WORDS)


def _module(error: str) -> bool:
    found = MODULE.fullmatch(error)
    return found is not None and found["module"].partition(".")[0] in sys.stdlib_module_names


def _module_attribute(error: str) -> bool:
    found = MODULE_ATTRIBUTE.fullmatch(error) or IMPORTED.fullmatch(error)
    if found is None or found["module"].partition(".")[0] not in sys.stdlib_module_names:
        return False
    return hasattr(importlib.import_module(found["module"]), found["name"])


def _attribute(error: str) -> bool:
    """A missing attribute of a type or of its objects; types of the standard library's classes cannot be looked up, and count."""
    found = ATTRIBUTE.fullmatch(error)
    if found is None:
        return False
    module, _, name = found["type"].rpartition(".")
    if _is_special(found["name"]) or (module and module.partition(".")[0] in sys.stdlib_module_names):
        return True
    known = types.FunctionType if name == "function" else getattr(builtins, name, None)
    return hasattr(known, found["name"])


def _name(error: str) -> bool:
    found = NAME.fullmatch(error)
    return found is not None and hasattr(builtins, found["name"])


def _other(error: str) -> bool:
    return any(unlike.fullmatch(error) for unlike in UNLIKE_CPYTHON)

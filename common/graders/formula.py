"""Formulas over numbers by name: parsed by Python's `ast`, of which a few kinds of nodes are taken, and never evaluated as code."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

MAX_CHARS = 1_000
MAX_NODES = 200
BINARY: Mapping[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: math.pow,
}
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "exp": math.exp,
    "sqrt": math.sqrt,
    "log": math.log,
}
"""`Any`: their numbers are what they are given."""
ONE_ARGUMENT = frozenset(FUNCTIONS) - {"min", "max"}


class Formula:
    """`0.8 * exact + 0.2 * max(near, 0)`: numbers, names, + - * / ^, and the functions of FUNCTIONS."""

    def __init__(self, text: str, names: frozenset[str]) -> None:
        """`names`: of the values. Raises: ValueError for what is no such formula."""
        if len(text) > MAX_CHARS:
            raise ValueError(f"a formula has at most {MAX_CHARS} characters")
        try:
            tree = ast.parse(text.replace("^", "**").strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise ValueError(f"'{text[:100]}' is no formula") from None
        if sum(1 for _ in ast.walk(tree)) > MAX_NODES:
            raise ValueError(f"a formula has at most {MAX_NODES} parts")
        self._tree = tree
        self.names = frozenset(_names(tree))
        if unknown := sorted(self.names - names):
            raise ValueError(f"the formula names '{unknown[0]}'; its graders are {', '.join(sorted(names))}")

    def value(self, values: Mapping[str, float]) -> float:
        """Raises: ArithmeticError, ValueError, as for a division by zero."""
        return float(_value(self._tree, values))


def _names(node: ast.expr) -> set[str]:
    """Names of values in the formula. Raises: ValueError for a node that is not taken."""
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            return set()
        case ast.Name(id=name):
            return {name}
        case ast.BinOp(left=left, op=op, right=right) if type(op) in BINARY:
            return _names(left) | _names(right)
        case ast.UnaryOp(op=ast.USub() | ast.UAdd(), operand=operand):
            return _names(operand)
        case ast.Call(func=ast.Name(id=name), args=[*arguments], keywords=[]) if name in FUNCTIONS:
            if not arguments or (name in ONE_ARGUMENT and len(arguments) != 1):
                raise ValueError(f"{name} takes {'one argument' if name in ONE_ARGUMENT else 'an argument'}")
            return set[str]().union(*map(_names, arguments))
        case _:
            taken = f"numbers, names of graders, + - * / ^, {', '.join(FUNCTIONS)}"
            raise ValueError(f"'{ast.unparse(node)[:60]}' has no place in a formula: it has {taken}")


def _value(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return float(number)
        case ast.Name(id=name):
            return values[name]
        case ast.BinOp(left=left, op=op, right=right):
            return BINARY[type(op)](_value(left, values), _value(right, values))
        case ast.UnaryOp(op=op, operand=operand):
            return -_value(operand, values) if isinstance(op, ast.USub) else _value(operand, values)
        case ast.Call(func=ast.Name(id=name), args=arguments):
            given = [_value(argument, values) for argument in arguments]
            return FUNCTIONS[name](*given) if name in ONE_ARGUMENT else FUNCTIONS[name](given)
        case _:
            raise ValueError("no such part of a formula")

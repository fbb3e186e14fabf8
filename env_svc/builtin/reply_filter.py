"""Filter of replies to scorers that evaluate them.

Some of reasoning-gym's scorers call Python's `eval` or sympy's `parse_expr` (which is `eval` too) on the reply. A policy that is
rewarded for the effects of evaluation would learn to use it, and any user could run code on this machine. So such a scorer gets
a reply only if its evaluation can do no more than build a value. Any other reply becomes UNREADABLE, which scores like a text
that does not parse. The filter is an allow list, since a list of forbidden code would miss some: an assignment to an
attribute can call a function, and a name alone can read the right answer.
"""

import ast

UNREADABLE = "("

EVALUATED = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Data sets whose scorer evaluates a reply as Python, unless it equals the right answer."""
OWN_CHARACTERS = frozenset("0123456789ABCDEQ_ \n")
"""Characters of these data sets' answers: rows of digits, chess boards, words of A to E. They form no operator, and no name that a
scorer could look up."""
PARSED = frozenset({"countdown", "intermediate_integration", "polynomial_multiplication", "puzzle24", "simple_integration"})
"""Data sets whose scorer passes a reply to sympy."""

FUNCTIONS = frozenset(
    {"Abs", "abs", "exp", "ln", "log", "sqrt"}
    | {prefix + name + suffix for prefix in ("", "a") for name in ("sin", "cos", "tan", "cot", "sec", "csc") for suffix in ("", "h")}
)
CONSTANTS = frozenset({"C", "E", "I", "pi"})
MAX_VARIABLE_CHARS = 2
MAX_EXPONENT = 100
MAX_POWER_DEPTH = 2
"""Maximum nesting of powers: enough for mathematics, too little to fill the memory with digits."""
MAX_FORMULA_CHARS = 10_000
"""Maximum length of a formula; Python's parser is recursive."""


def readable(dataset: str, reply: str) -> str:
    """`reply`, or UNREADABLE if the scorer of `dataset` could run it as code."""
    if dataset in EVALUATED and not _is_inert(reply):
        return UNREADABLE
    if dataset in PARSED and not _is_formula(reply):
        return UNREADABLE
    return reply


def _is_inert(reply: str) -> bool:
    """Whether evaluation of the reply is harmless: a literal, or text whose characters form no operator and no known name."""
    if OWN_CHARACTERS.issuperset(reply):
        return True
    try:
        ast.literal_eval(reply.strip())
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _is_formula(reply: str) -> bool:
    if len(reply) > MAX_FORMULA_CHARS:
        return False
    try:
        return _is_term(ast.parse(reply.strip(), mode="eval").body, powers=0)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False


def _is_term(node: ast.expr, powers: int) -> bool:
    match node:
        case ast.Constant(value=value):
            return type(value) in (int, float)
        case ast.Name(id=name):
            return name in CONSTANTS or len(name) <= MAX_VARIABLE_CHARS
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _is_term(operand, powers)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return powers < MAX_POWER_DEPTH and _is_term(left, powers + 1) and _is_exponent(right, powers + 1)
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), left=left, right=right):
            return _is_term(left, powers) and _is_term(right, powers)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return name in FUNCTIONS and _is_term(argument, powers)
        case ast.Call(func=ast.Name(id="Integral"), args=[integrand, ast.Name() as variable], keywords=[]):
            return _is_term(integrand, powers) and _is_term(variable, powers)  # in answers that sympy itself could not finish
        case _:
            return False


def _is_exponent(node: ast.expr, powers: int) -> bool:
    """Whether an exponent is a term with a variable, which stays symbolic, or one small number or fraction; never with a power in it."""
    inner = list(ast.walk(node))
    constants = [part.value for part in inner if isinstance(part, ast.Constant)]
    if any(not isinstance(value, int | float) or abs(value) > MAX_EXPONENT for value in constants):
        return False
    arithmetic = [part.op for part in inner if isinstance(part, ast.BinOp)]
    if any(isinstance(operator, ast.Pow) for operator in arithmetic):
        return False
    is_symbolic = any(isinstance(part, ast.Name) for part in inner)
    return (is_symbolic or not arithmetic or (isinstance(arithmetic[0], ast.Div) and len(arithmetic) == 1)) and _is_term(node, powers)

"""Tool `calculator`: evaluates one arithmetic expression in a sandboxed interpreter."""

import ast

from env_svc.sandboxes.monty import MontySandbox
from env_svc.sandboxes.sandbox import MIB, Bounds
from env_svc.tools.tool import Arguments, CallError, Tool

BOUNDS = Bounds(time_s=2.0, memory_bytes=16 * MIB, output_bytes=4096)
MAX_EXPRESSION_CHARS = 500
"""Maximum length of an expression."""
FUNCTIONS = ("abs", "round", "min", "max", "sqrt")
ARITHMETIC = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant, ast.Call, ast.Name, ast.Load)
HOW = f"write one expression of numbers, + - * / // % ** ( ) and {', '.join(FUNCTIONS)}"


class CalculatorTool(Tool):
    """Evaluates an arithmetic expression. Whole numbers stay exact; other results have 12 significant digits."""

    name = "calculator"
    description = "Evaluate an arithmetic expression."
    parameters = {
        "type": "object",
        "properties": {"expression": {"type": "string"}},
        "required": ["expression"],
        "additionalProperties": False,
    }

    def __init__(self) -> None:
        self._sandbox = MontySandbox()

    async def call(self, arguments: Arguments) -> str:
        expression = _readable(str(arguments["expression"]))
        # The expression has a line of its own, so that a comment in it ends there.
        source = f"from math import sqrt\nresult = (\n{expression}\n)\nprint(result if type(result) is int else f'{{result:.12g}}')"
        ran = await self._sandbox.run(source, BOUNDS)
        if ran.stopped is not None:
            raise CallError(f"the result is too large, or took more than {BOUNDS.time_s:g} s")
        if ran.error:
            raise CallError(ran.error.strip().splitlines()[-1])
        return ran.output.strip()

    async def close(self) -> None:
        await self._sandbox.close()


def _readable(expression: str) -> str:
    """The expression in Python's notation. Raises: CallError unless it is arithmetic and nothing else."""
    written = expression.strip().replace("×", "*").replace("÷", "/").replace("−", "-").replace("^", "**")
    if len(written) > MAX_EXPRESSION_CHARS:
        raise CallError(f"the expression has {len(written)} characters, at most {MAX_EXPRESSION_CHARS} are allowed")
    try:
        parsed = ast.parse(written, mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise CallError(f"{expression.strip()!r:.60} is not an expression: {HOW}") from None
    called = {id(node.func) for node in ast.walk(parsed) if isinstance(node, ast.Call)}
    for node in ast.walk(parsed):
        if not isinstance(node, ARITHMETIC) or (isinstance(node, ast.Constant) and type(node.value) not in (int, float)):
            raise CallError(f"{type(node).__name__} is not arithmetic: {HOW}")
        if isinstance(node, ast.Name) and not (node.id in FUNCTIONS and id(node) in called):
            raise CallError(f"'{node.id:.20}' is not a number: {HOW}")
    return ast.unparse(parsed)

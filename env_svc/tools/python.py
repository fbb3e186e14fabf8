"""Tool `python`: runs code in the replica's sandbox."""

import ast

from env_svc.sandboxes.current import current
from env_svc.sandboxes.sandbox import MIB, Bounds, RunResult
from env_svc.tools.tool import Arguments, CallError, Tool, WrongOptions

MAX_TIME_S = 60.0
MAX_MEMORY_MIB = 2048
MAX_TRACEBACK_LINES = 6
"""Maximum lines of a traceback that the policy sees."""


class Python(Tool):
    """Returns the code's output and the value of its last line. Nothing is kept between calls."""

    name = "python"
    description = "Run Python code and see what it prints. The value of the last line is printed too. Nothing is kept between calls."
    parameters = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"], "additionalProperties": False}

    def __init__(self, time_s: float = 5.0, memory_mib: int = 256) -> None:
        if not 0 < time_s <= MAX_TIME_S:
            raise WrongOptions(f"time_s is {time_s:g}, expected more than 0 and at most {MAX_TIME_S:g}")
        if not 16 <= memory_mib <= MAX_MEMORY_MIB:
            raise WrongOptions(f"memory_mib is {memory_mib}, expected 16 to {MAX_MEMORY_MIB}")
        self._bounds = Bounds(time_s=time_s, memory_bytes=memory_mib * MIB)
        self._sandbox = current("the tool 'python'")

    async def call(self, arguments: Arguments) -> str:
        ran = await self._sandbox.run(with_last_value(str(arguments["code"])), self._bounds)
        missing = self._sandbox.unsupported(ran.error)
        if missing is not None:
            raise CallError(f"this interpreter does not support that part of Python: {missing}")
        text = _answer(ran, self._bounds)
        if ran.is_complete:
            return text
        raise CallError(text)


def with_last_value(source: str) -> str:
    """The code, changed to print the value of its last line if that is an expression with a value."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return source  # the sandbox reports the error
    if not tree.body or not isinstance(last := tree.body[-1], ast.Expr):
        return source
    lines = source.encode().splitlines(keepends=True)
    before = b"".join(lines[: last.lineno - 1]) + lines[last.lineno - 1][: last.col_offset]
    try:
        value = ast.unparse(last.value)
    except RecursionError:
        return source
    shown = f"_value = ({value})\nif _value is not None: print(_value if isinstance(_value, str) else repr(_value))\n"
    return before.decode() + ("\n" if before and not before.endswith(b"\n") else "") + shown


def _answer(ran: RunResult, bounds: Bounds) -> str:
    parts = [ran.output.rstrip("\n")]
    match ran.stopped:
        case "time":
            parts.append(f"stopped: it took more than {bounds.time_s:g} s")
        case "memory":
            parts.append(f"stopped: it used more than {bounds.memory_bytes // MIB} MiB")
        case "output":
            parts.append(f"stopped: it printed more than {bounds.output_bytes} bytes")
        case None:
            parts.append("\n".join(ran.error.rstrip("\n").splitlines()[-MAX_TRACEBACK_LINES:]))
    return "\n".join(part for part in parts if part) or "(nothing was printed)"

"""Environment `code`: programming problems graded by unit tests.

Rows are JSON objects as in MBPP: a text, tests that are assert statements, and optionally a solution and code before the tests:

    {"text": "Write a function that doubles.", "test_list": ["assert double(2) == 4"], "code": "def double(n): return 2 * n"}

A reply's code is its last fenced block that defines the tested function, or else its last block, or else the whole reply.
`code_grading.py` grades it so that a policy can forge nothing.
"""

import re
import secrets
import textwrap
from typing import TypedDict

from env_svc.builtin import code_grading
from env_svc.builtin.code_grading import NotATest, UnitTest, asking_program, judging_program, raised, returned
from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn, WrongOptions
from env_svc.datasets import Row, row_at, rows_of_dataset, rows_of_file
from env_svc.sandboxes.current import current, refuse_unsupported
from env_svc.sandboxes.sandbox import MIB, Bounds

BLOCK = re.compile(
    r"(?P<indent>^[ \t]*)?(?P<fence>`{3,}|~{3,})[^`\n]*\n(?P<code>.*?)(?:(?:^(?:(?P=indent)|[ ]{0,3})|(?<=\S))(?P=fence)[ \t\r]*$|\Z)",
    re.DOTALL | re.MULTILINE,
)
OUTPUT_BYTES = 256 * 1024
INSTRUCTION = "Answer with a Python function that passes this test: {test}"


class CodeState(TypedDict):
    """State: the problem itself, so that a replica with another file grades the same."""

    tests: list[str]
    setup: str
    solution: str


class Code(Environment[CodeState]):
    """One problem, one reply; reward 1 if all tests pass. Tests beyond the first `shown` are not in the prompt."""

    components = ("passed", "parsed")

    def __init__(
        self,
        *,
        file: str | None = None,
        dataset: str | None = None,
        configuration: str | None = None,
        split: str = "train",
        shown: int = 1,
        time_s: float = 5.0,
        memory_mib: int = 256,
    ) -> None:
        if file is not None and dataset is not None:
            raise WrongOptions("environment 'code' takes one of the options 'file' and 'dataset'")
        self._rows: list[Row] = rows_of_dataset(dataset, configuration, split) if dataset else rows_of_file(file or "small_programs.jsonl")
        self._shown = shown
        self._bounds = Bounds(time_s=time_s, memory_bytes=memory_mib * MIB, output_bytes=OUTPUT_BYTES)
        self._sandbox = current("the environment 'code'")
        for number, row in enumerate(self._rows):
            try:
                _tests(row["test_list"], str(row.get("code") or ""))
                row["text"] = str(row["text"] if "text" in row else row["prompt"])
            except (KeyError, TypeError, NotATest) as error:
                raise WrongOptions(f"environment 'code': row {number}: {error!s:.200}") from None

    async def open(self, index: int, seed: int) -> Opening[CodeState]:
        row = row_at(self._rows, index, seed)
        setup = str(row.get("test_setup_code") or "\n".join(row.get("test_imports") or ()))
        shown = "\n".join(filter(None, [setup, *row["test_list"][: self._shown]]))
        asked = [INSTRUCTION.format(test=shown)] if self._shown else []
        question = ChatMessage(role="user", content="\n\n".join([row["text"], *asked]))
        return Opening([question], CodeState(tests=list(row["test_list"]), setup=setup, solution=str(row.get("code") or "")))

    async def step(self, state: CodeState, reply: Reply) -> Turn[CodeState]:
        setup, reference = state["setup"], state["solution"]
        function, tests = _tests(state["tests"], reference)
        source, mark = written(reply.spoken.strip() or reply.text, function), secrets.token_hex(8)
        asked = await self._sandbox.run(asking_program(source, setup, tests, mark), self._bounds)
        values = returned(asked.output, mark)
        held, errors = set[str](), [asked.error, *raised(asked.output, mark)]
        if values:
            judged = await self._sandbox.run(judging_program(setup, tests, values, mark, reference), self._bounds)
            held = {number for line in judged.output.splitlines() for first, _, number in [line.partition(" ")] if first == mark}
            errors += [judged.error, *raised(judged.output, mark)]
        passed = len(held & set(map(str, range(len(tests))))) / len(tests)
        if passed < 1:
            refuse_unsupported(self._sandbox, source, *errors)
        return Finish(float(passed == 1), {"passed": passed, "parsed": float("SyntaxError" not in asked.error)})

    async def gold(self, state: CodeState) -> str | None:
        return f"```python\n{state['solution']}\n```" if state["solution"] else None


def written(reply: str, function: str) -> str:
    """The code in a reply, by the rule above. `function`: name of the tested function."""
    blocks = [textwrap.dedent(block["code"]) for block in BLOCK.finditer(reply)]
    return next((block for block in reversed(blocks) if code_grading.defines(block, function)), blocks[-1] if blocks else reply)


def _tests(sources: list[str], reference: str) -> tuple[str, list[UnitTest]]:
    """The tested function, and its tests. Raises: NotATest."""
    function = code_grading.function_of(sources, reference)
    return function, [code_grading.unit_test(source, function) for source in sources]

"""The environment `file:<id>`: a row's `messages` are the prompt, one reply is graded."""

import re
from collections.abc import Mapping
from typing import Literal, cast

from pydantic import JsonValue

from common.graders import WrongGrader, read_grader
from common.messages import FILE_FAMILY, FILE_ID_PATTERN
from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn, WrongOptions
from env_svc.files.grading import ERRORS, Grading
from env_svc.files.order import permuted
from env_svc.files.row_file import RowFile
from env_svc.options import options_of, validated_options

Part = Literal["all", "train", "held_out"]
ROLES: Mapping[str, str] = {"developer": "system"}
"""Roles that chat templates know under another name."""


class FileRows(Environment[int]):
    """Rows of a file. The state is the number of the row, which does not change."""

    def __init__(
        self, rows: RowFile, *, grader: dict[str, JsonValue], file: str | None = None, part: Part = "all", held_out: float = 0.0
    ) -> None:
        """`file`: in place of the one that the name says, as for an evaluation. `part`: of the file; `held_out`: the share of its last
        rows that training leaves out."""
        del file
        if not 0 <= held_out < 1:
            raise WrongOptions(f"environment 'file': held_out is {held_out:g}, expected a share from 0 to below 1")
        try:
            self._grading = Grading(read_grader(cast("JsonValue", grader)))
            self._grading.check(rows.row(0))
        except WrongGrader as error:
            raise WrongOptions(f"environment 'file': grader.{error}") from None
        kept = len(rows) - round(len(rows) * held_out)
        self._first = kept if part == "held_out" else 0
        self._count = (kept if part == "train" else len(rows)) - self._first
        self._rows = rows
        if not self._count:
            raise WrongOptions(f"environment 'file': no row of {len(rows)} is in the part '{part}' with held_out = {held_out:g}")

    async def open(self, index: int, seed: int) -> Opening[int]:
        epoch, position = divmod(index, self._count)
        number = self._first + permuted(position, self._count, f"{seed}:{epoch}")
        messages = [_message(one) for one in self._rows.row(number)["messages"]]
        return Opening(messages, number)

    async def step(self, state: int, reply: Reply) -> Turn[int]:
        grade = await self._grading.grade(self._rows.row(state), reply.text)
        return Finish(grade.value, {**grade.parts, ERRORS: float(grade.errors)})


def _message(given: Mapping[str, str]) -> ChatMessage:
    role = ROLES.get(given["role"], given["role"])
    return ChatMessage.model_validate({"role": role, "content": given["content"]})


def digest_of(name: str, options: Mapping[str, JsonValue]) -> str:
    """SHA-256 of the file that a task means: its option `file`, or the one in its environment's name. Raises: WrongOptions."""
    file = options.get("file")
    said = file if file is not None else name.partition(":")[2]
    if not isinstance(said, str) or not re.fullmatch(FILE_ID_PATTERN, said):
        raise WrongOptions(f"environment '{FILE_FAMILY}': '{said!s:.100}' names no file; expected file-<SHA-256>")
    return said.removeprefix("file-")


def file_rows(name: str, rows: RowFile, options: Mapping[str, JsonValue]) -> FileRows:
    """Raises: WrongOptions."""
    known = options_of(FileRows) or []
    values = validated_options(f"environment '{name[:20]}…'", known[1:], options)
    return FileRows(rows, **values)

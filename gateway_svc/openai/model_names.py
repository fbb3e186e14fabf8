"""Names of models: `POOL`, `TASK@latest`, `TASK@best`, `TASK@7` and aliases (docs/adr/0032-names-of-models.md). Pure."""

import re
from dataclasses import dataclass
from typing import Literal

from common.client_api.errors import is_name
from common.messages.asks import MAX_VERSION
from common.spec import TASK_ID_PATTERN
from gateway_svc.openai.errors import model_not_found

_VERSION = re.compile(r"^(0|[1-9][0-9]{0,9})$")


@dataclass(frozen=True)
class PlainName:
    """A pool, which names its base model, or an alias: the form does not say which."""

    name: str


@dataclass(frozen=True)
class VersionName:
    """A version of a task."""

    task: str
    version: int | Literal["latest", "best"]

    def __str__(self) -> str:
        return f"{self.task}@{self.version}"


def parse_name(name: str) -> PlainName | VersionName:
    """What a name means. Raises: Problem for what cannot name a model."""
    before, at, after = name.partition("@")
    if not at and is_name(name):
        return PlainName(name)
    if at and re.fullmatch(TASK_ID_PATTERN, before):
        if after == "latest" or after == "best":
            return VersionName(before, after)
        if _VERSION.match(after) and int(after) <= MAX_VERSION:
            return VersionName(before, int(after))
    raise model_not_found(name[:120], "models are named POOL, TASK@latest, TASK@best, TASK@NUMBER, or as an alias is")


def name_of(task: str, version: int) -> str:
    """The exact name of a version."""
    return str(VersionName(task, version))

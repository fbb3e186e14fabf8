"""Rows of question and answer: from a JSONL file of the deployment or of this package, or from Hugging Face.

The user who submits a task does not run the replica, so a file name leads into the folder `MARLAAS_ENV_DATA`, or to a file
shipped with the environments, and nowhere else. That folder may hold data sets of Hugging Face too, `openai/gsm8k` in the
folder of that name: they are read without a network. Other data sets must be in the operator's list, with a revision (ADR 20).
"""

import random
import re
from collections.abc import Collection
from functools import lru_cache
from pathlib import Path
from typing import Any

from common.errors import Fatal
from common.formats.jsonl import Row, parse_object
from common.spec import EnvironmentSection
from common.streams import OPERATOR
from env_svc.errors import EnvironmentUnavailable, WrongOptions
from env_svc.settings import EnvSettings

SHIPPED = Path(__file__).parent / "builtin" / "data"
MAX_FILE_BYTES = 2 * 2**30
HUB_NAME = re.compile(r"^[A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*$")

REVISION = re.compile(r"^[A-Za-z0-9][\w./-]*$")
ANY = "*"
ENTRY = re.compile(r"^(?:(?P<tenant>[a-z0-9-]+|_operator)=)?(?P<dataset>.+)$")
READERS = frozenset({"math", "code"})
"""Environments whose option `dataset` names a data set of Hugging Face."""


@lru_cache(maxsize=8)
def rows_of_file(name: str) -> list[Row]:
    """Objects of a JSONL file, one per line; empty lines are skipped. Raises: WrongOptions that names the invalid line."""
    path = _path(name)
    rows: list[Row] = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = parse_object(line)
            except ValueError as error:
                raise WrongOptions(f"file '{name}' line {number}: {error}; expected a JSON object") from None
            if row is not None:
                rows.append(row)
    return rows


def text_of(value: object) -> str | None:
    """An answer of a row as text: 42 and 42.0 are 42. None if it is neither text nor number."""
    match value:
        case str():
            return value
        case bool():
            return None
        case int() | float():
            return str(int(value) if value == value // 1 else value)
        case _:
            return None


@lru_cache(maxsize=8)
def rows_of_dataset(name: str, configuration: str | None, split: str) -> list[Row]:
    """A data set of Hugging Face, by name: the deployment's copy, or the hub's.

    Raises: WrongOptions if the operator does not list it, `datasets` is not installed, or the data set has no such configuration or
    split; EnvironmentUnavailable if it cannot be loaded now.
    """
    if not HUB_NAME.match(name):  # the library would take a folder of this machine as well
        raise WrongOptions(f"option 'dataset': '{name}' is not the name of a data set on Hugging Face, such as 'openai/gsm8k'")
    copy = _copy_of(name)
    is_copied = copy.is_dir()
    revision = None if is_copied else _listed_revision(name)
    try:
        import datasets  # the extra `marlaas[datasets]`
    except ImportError:
        raise WrongOptions("option 'dataset' needs the package 'datasets' on the replica: pip install 'marlaas[datasets]'") from None
    try:
        loaded: Any = datasets.load_dataset(  # pyright: ignore[reportAttributeAccessIssue]  # it takes this module for the package
            str(copy.resolve()) if is_copied else name, configuration, split=split, revision=revision
        )
    except ValueError as error:
        raise WrongOptions(f"data set '{name}': {error}") from None
    except Exception as error:
        raise EnvironmentUnavailable(f"data set '{name}' cannot be loaded: {type(error).__name__}: {error}") from error
    return [dict(row) for row in loaded]


@lru_cache(maxsize=16)
def order(rows: int, seed: int, epoch: int) -> list[int]:
    """Permutation of an epoch's rows, different for each seed and epoch."""
    return random.Random(f"{seed}:{epoch}").sample(range(rows), rows)


def row_at(rows: list[Row], index: int, seed: int) -> Row:
    """The row at `index` of a task with `seed`; the index counts on through the epochs."""
    epoch, position = divmod(index, len(rows))
    return rows[order(len(rows), seed, epoch)[position]]


def _path(name: str) -> Path:
    relative = Path(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise WrongOptions(f"file '{name}': expected a name inside the folder MARLAAS_ENV_DATA, without '..'")
    for folder in (_data_folder(), SHIPPED):
        path = folder / relative
        if path.is_file() and path.resolve().is_relative_to(folder.resolve()):
            if path.stat().st_size > MAX_FILE_BYTES:
                raise WrongOptions(f"file '{name}' is larger than {MAX_FILE_BYTES >> 30} GiB")
            return path
    shipped = ", ".join(sorted(path.name for path in SHIPPED.glob("*.jsonl")))
    raise WrongOptions(f"no file '{name}' in the folder MARLAAS_ENV_DATA of this replica; shipped: {shipped}")


class ListedDatasets:
    """The operator's list `MARLAAS_ENV_DATASETS`, entries separated by commas.

    openai/gsm8k@e53f048        a data set with its revision, for tasks of all tenants
    acme=openai/gsm8k@e53f048   the same, for tasks of tenant acme alone
    _operator=*                 any, at its newest revision, for tasks of the operator (`allowed.py`); what `marlaas up` sets
    *                           any, for tasks of all tenants
    """

    def __init__(self, entries: str) -> None:
        """Raises: Fatal for an invalid entry, or for two revisions of a data set: workers, which do not know tenants, could not choose."""
        self.revisions: dict[str, str] = {}
        """Data set → revision, over all entries."""
        self._of_tenants: dict[str | None, set[str]] = {}
        for entry in filter(None, map(str.strip, entries.split(","))):
            found = ENTRY.match(entry)
            name, _, revision = (found["dataset"] if found else "").partition("@")
            if name != ANY and not (HUB_NAME.match(name) and REVISION.match(revision)):
                raise Fatal(f"MARLAAS_ENV_DATASETS: '{entry}' is no data set with a revision, such as openai/gsm8k@e53f048856ff")
            if self.revisions.setdefault(name, revision) != revision:
                raise Fatal(f"MARLAAS_ENV_DATASETS: '{name}' has two revisions, {self.revisions[name]} and {revision}; a replica reads one")
            self._of_tenants.setdefault(found["tenant"] if found else None, set()).add(name)

    def objection(self, tenant: str, environment: EnvironmentSection, *, by_operator: bool) -> str | None:
        """Reason why `tenant` may not use the data set of a task's section; None if it may, or the section names none.

        `by_operator`: whether the operator submitted the task.
        """
        name = environment.options.get("dataset") if environment.name in READERS else None
        if not isinstance(name, str) or not HUB_NAME.match(name) or _copy_of(name).is_dir():
            return None
        keys = (None, tenant, *((OPERATOR,) if by_operator else ()))
        known = set[str]().union(*(self._of_tenants.get(key, set()) for key in keys))
        return None if known & {name, ANY} else not_offered(name, known)


def not_offered(name: str, known: Collection[str]) -> str:
    listed = ", ".join(sorted(known)) or "none"
    return f"option 'dataset': '{name}' is not offered here; the operator lists (MARLAAS_ENV_DATASETS): {listed}"


def _listed_revision(name: str) -> str | None:
    """Listed revision; None (the newest) if any data set is allowed. Raises: WrongOptions if no tenant's list has it."""
    listed = ListedDatasets(EnvSettings.read().datasets).revisions
    if name not in listed and ANY not in listed:
        raise WrongOptions(not_offered(name, listed))
    return listed.get(name)


def _copy_of(name: str) -> Path:
    """Folder of the deployment's copy, which may be absent."""
    return _data_folder() / name


@lru_cache
def _data_folder() -> Path:
    return EnvSettings.read().data

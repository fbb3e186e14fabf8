"""Request bodies: strict JSON without values that PostgreSQL cannot store, bounded before parsing; and task files."""

import asyncio
import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, cast

from pydantic import JsonValue

from common.client_api.errors import TaskRejected, check_spec
from common.formats import strict_json, toml_reader
from common.formats.bounds import OutOfBounds, check_json
from common.formats.toml_reader import read_toml
from common.resilience.event_loop import own_turn
from common.spec import NAME_PATTERN, marked
from gateway_svc.problems import FieldError, Problem, forbidden, invalid, rejected

INTEGERS = range(-(2**63), 2**64)
"""Range of integers that messages can contain."""
_SURROGATE = re.compile("[\ud800-\udfff]")
JSON, TOML = "application/json", "application/toml"
SHORT_BYTES = 8 * 1024
"""Maximum size of TOML that is parsed in this process: it blocks the event loop for at most 10 ms."""
READER_S = 30.0
"""Maximum seconds of a process that parses longer TOML. `_READERS` limits the number of concurrent processes."""
_READERS = asyncio.Semaphore(2)
IDEMPOTENCY_KEY = r"^[\x21-\x7e]{1,255}$"


def read_json(body: bytes) -> JsonValue:
    """Parse a JSON body. Raises: Problem for invalid JSON, an exceeded bound, NaN, duplicate keys, NUL or lone surrogates."""
    try:
        may_be_unstorable = check_json(body)
    except OutOfBounds as error:
        raise wrong(str(error)) from None
    return read_scanned(body, may_be_unstorable=may_be_unstorable)


def read_scanned(body: bytes, *, may_be_unstorable: bool) -> JsonValue:
    """Parse a JSON body that a JsonScan has already checked. Raises: Problem."""
    try:
        found = strict_json.read(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise wrong(f"not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise wrong(f"not JSON: {error.msg} at character {error.pos}") from None
    except ValueError as error:
        raise wrong(str(error)) from None
    if may_be_unstorable:
        check_values(found)
    return found


def check_values(value: JsonValue) -> None:
    """Raises: Problem for NUL or a lone surrogate in a text, keys included, and for integers outside INTEGERS."""
    match value:
        case int():
            if value not in INTEGERS:
                raise wrong(f"{value if abs(value) < 2**70 else 'a whole number'} is too large")
        case str():
            if "\0" in value:
                raise wrong("a text has the character NUL")
            if _SURROGATE.search(value):
                raise wrong("a text has half of a surrogate pair")
        case list():
            for one in value:
                check_values(one)
        case dict():
            for name, one in value.items():
                check_values(name)
                check_values(one)
        case _:
            pass


def wrong(reason: str) -> Problem:
    return invalid(FieldError("", reason))


class Place(Protocol):
    """Preparation slot of a request; a sender has few of them (`limits/preparation_slots.py`)."""

    charge: Callable[[float], None]
    """Charge processor seconds to the sender."""

    def keep(self) -> None:
        """Keep the slot until the request is answered: the sender's next request waits that long."""
        ...


async def read_task(body: bytes, media_type: str, place: Place) -> dict[str, JsonValue]:
    """Parse a task file. `place`: charged for the processor time of the process that parses long TOML. Raises: Problem."""
    await own_turn(len(body))
    found = read_json(body) if media_type == JSON else await _read_toml(body, place)
    if not isinstance(found, dict):
        raise invalid(FieldError("", "a task file is one object"))
    await own_turn(len(body))  # checking it takes as long again
    return found


def for_tenant(spec: Mapping[str, JsonValue], tenant: str | None) -> dict[str, JsonValue]:
    """The task file with its tenant. `tenant`: that of the submitter or of the URL; None: only the file can name one.

    Raises: Problem if the file names another tenant.
    """
    said = spec.get("tenant", tenant)
    if said is None:
        others = [error for error in _wrong_fields(spec) if error.field != "tenant"]
        raise invalid(FieldError("tenant", "name the tenant, here or with ?tenant=NAME"), *others)
    if tenant is not None and said != tenant:
        raise forbidden(["admin"], f"the task file says tenant '{said}', and the key is of tenant '{tenant}'")
    if not isinstance(said, str) or re.fullmatch(NAME_PATTERN, said) is None:
        raise invalid(*_wrong_fields({**spec, "tenant": said}))
    return {**spec, "tenant": said}


def _wrong_fields(spec: Mapping[str, JsonValue]) -> Sequence[FieldError]:
    """Errors that the task file shows by itself, without a scheduler."""
    try:
        check_spec(dict(spec))
    except TaskRejected as error:
        return rejected(error.reasons).errors
    return []


def id_of(tenant: str, idempotency_key: str) -> str:
    """Task id derived from tenant and idempotency key: repeated submissions are the same task."""
    return marked(f"once-{hashlib.sha256(f'{tenant} {idempotency_key}'.encode()).hexdigest()[:32]}", tenant)


async def _read_toml(body: bytes, place: Place) -> JsonValue:
    """Parse TOML, in another process if it is long. Raises: Problem."""
    if len(body) > SHORT_BYTES:
        place.keep()
        async with _READERS:
            found, took_s = await asyncio.to_thread(_read_apart, body)
        place.charge(took_s)
        if isinstance(found, Problem):
            raise found
        return found
    try:
        found = cast("JsonValue", read_toml(body))
    except ValueError as error:
        raise invalid(FieldError("", str(error))) from None
    check_values(found)
    return found


def _read_apart(body: bytes) -> tuple[JsonValue | Problem, float]:
    """Parse TOML in another process; return the value or a problem, and the processor seconds it took."""
    command = [sys.executable, "-I", "-S", toml_reader.__file__]
    try:
        done = subprocess.run(command, input=body, capture_output=True, timeout=READER_S, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        limits = f"{toml_reader.PROCESSOR_S} s or {toml_reader.MEMORY_BYTES // 2**20} MiB"
        return invalid(FieldError("", f"reading this TOML takes more than {limits}; send it as JSON")), float(toml_reader.PROCESSOR_S)
    head, _, written = done.stdout.partition(b"\n")
    answer = json.loads(head)
    try:
        found = invalid(FieldError("", answer["error"])) if answer["error"] is not None else read_json(written)
    except Problem as problem:
        found = problem
    return found, answer["processor_s"]

"""Task files as requests have them: JSON or TOML, for one tenant."""

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
from common.formats import toml_reader
from common.formats.toml_reader import read_toml
from common.resilience.event_loop import own_turn
from common.spec import NAME_PATTERN, marked
from gateway_svc.problems import FieldError, Problem, forbidden, invalid, rejected
from gateway_svc.strict_json import check_values, read_json

JSON, TOML = "application/json", "application/toml"
SHORT_BYTES = 8 * 1024
"""TOML that is read in this process: 10 ms of the loop at most."""
READER_S = 30.0
"""Maximum seconds of the process that reads more, of which few run concurrently."""
_READERS = asyncio.Semaphore(2)
IDEMPOTENCY_KEY = r"^[\x21-\x7e]{1,255}$"


class Place(Protocol):
    """Of the request among its sender's."""

    charge: Callable[[float], None]
    """Has the sender pay for processor seconds."""

    def keep(self) -> None:
        """However long it takes, the next request of the sender waits."""
        ...


async def read_task(body: bytes, media_type: str, place: Place) -> dict[str, JsonValue]:
    """The task file. `place`: of the request; its sender pays for what another process does. Raises: Problem."""
    await own_turn(len(body))
    found = read_json(body) if media_type == JSON else await _read_toml(body, place)
    if not isinstance(found, dict):
        raise invalid(FieldError("", "a task file is one object"))
    await own_turn(len(body))  # to check it takes as long again
    return found


def for_tenant(spec: Mapping[str, JsonValue], tenant: str | None) -> dict[str, JsonValue]:
    """The task file with its tenant. `tenant`: who submits it; None: an admin, who names one in the file or in the address.

    Raises: Problem when the file names another.
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
    """What the file has wrong by itself."""
    try:
        check_spec(dict(spec))
    except TaskRejected as error:
        return rejected(error.reasons).errors
    return []


def id_of(tenant: str, idempotency_key: str) -> str:
    """The id of the one task that a tenant submits with this key."""
    return marked(f"once-{hashlib.sha256(f'{tenant} {idempotency_key}'.encode()).hexdigest()[:32]}", tenant)


async def _read_toml(body: bytes, place: Place) -> JsonValue:
    """Raises: Problem."""
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
    """What a process reads in the body or what is wrong with it, and its processor seconds."""
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

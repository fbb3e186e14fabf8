"""Task files as requests have them: JSON or TOML, for one tenant."""

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence

from pydantic import JsonValue, TypeAdapter, ValidationError

from common.door.errors import TaskRejected, check_spec
from common.formats.strict_json import finite
from gateway_svc.problems import FieldError, Problem, forbidden, invalid, rejected
from gateway_svc.strict_json import MAX_DEPTH, check_values, read_json

JSON, TOML = "application/json", "application/toml"
_DOTTED = re.compile(rf"(?<![\w\"'.-])(?:[\w\"'-]++[ \t]*+\.[ \t]*+){{{MAX_DEPTH}}}", re.ASCII)
"""Dotted keys that nest too deep. tomllib takes time and memory that grow with the square of their length."""
IDEMPOTENCY_KEY = r"^[\x21-\x7e]{1,255}$"
_VALUE = TypeAdapter[JsonValue](JsonValue)


def read_task(body: bytes, media_type: str) -> dict[str, JsonValue]:
    """The task file. Raises: Problem."""
    found = read_json(body) if media_type == JSON else _read_toml(body)
    if not isinstance(found, dict):
        raise invalid(FieldError("", "a task file is one object"))
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
    return f"once-{hashlib.sha256(f'{tenant} {idempotency_key}'.encode()).hexdigest()[:32]}"


def _read_toml(body: bytes) -> JsonValue:
    try:
        text = body.decode()
        if _DOTTED.search(text):
            raise _too_deep()
        found = _VALUE.validate_python(tomllib.loads(text, parse_float=finite), strict=True)
    except UnicodeDecodeError as error:
        raise invalid(FieldError("", f"not UTF-8: byte {error.start}")) from None
    except ValidationError:
        raise invalid(FieldError("", "dates and times are in no task file")) from None
    except ValueError as error:  # TOMLDecodeError, and whole numbers of more than 4,300 digits
        raise invalid(FieldError("", f"not TOML: {error}")) from None
    except RecursionError:
        raise _too_deep() from None
    if _depth(found) > MAX_DEPTH:
        raise _too_deep()
    check_values(found)
    return found


def _too_deep() -> Problem:
    return invalid(FieldError("", f"more than {MAX_DEPTH} arrays and tables are nested"))


def _depth(value: JsonValue) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0) if isinstance(value, dict | list) else 0

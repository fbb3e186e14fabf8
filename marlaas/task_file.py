"""Task files: TOML, checked before it is sent."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from common.errors import Reject
from common.spec import TaskSpec, check_fields, parse_spec

T = TypeVar("T")


def read_task(path: Path) -> TaskSpec:
    """The task that the file describes by itself, without a pool's defaults. Raises: Reject, naming the file and every wrong field."""
    return _checked(path, parse_spec)


def read_given(path: Path) -> dict[str, JsonValue]:
    """What the file says, each field checked by itself. Raises: as `read_task`."""

    def check(raw: dict[str, JsonValue]) -> dict[str, JsonValue]:
        check_fields(raw)
        return raw

    return _checked(path, check)


def _checked(path: Path, check: Callable[[dict[str, JsonValue]], T]) -> T:
    try:
        return check(tomllib.loads(path.read_text()))
    except FileNotFoundError:
        raise Reject(f"there is no task file {path}; examples/ holds some to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Reject(f"cannot read task file {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise Reject(f"{path} is not TOML: {error}") from None
    except Reject as error:
        raise Reject(f"{path}: {error}") from None

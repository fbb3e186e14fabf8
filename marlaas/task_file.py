"""Task files: TOML, checked before it is sent."""

import tomllib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import JsonValue

from common.client_api.errors import TaskRejected
from common.errors import MarlaasError, Reject
from common.formats.toml_file import read_toml
from common.spec import TaskSpec, check_fields, parse_spec
from marlaas.stack.state_files import StackError

T = TypeVar("T")


def read_task(path: Path) -> TaskSpec:
    """The task in a file, without a pool's defaults. Raises: Reject, naming the file and every invalid field."""
    return _checked(path, parse_spec)


def read_given(path: Path) -> dict[str, JsonValue]:
    """Content of a task file, unchecked. Raises: Reject, naming the file, if it is not a task file at all."""
    return _checked(path, dict)


@contextmanager
def own_errors_first(path: Path, given: dict[str, JsonValue]) -> Generator[None]:
    """Context of a deployment's check of a file: if the deployment is unavailable, the file's own errors are raised instead.

    Raises: as `read_task`.
    """
    try:
        yield
    except TaskRejected:
        raise
    except (MarlaasError, StackError):
        try:
            check_fields(given)
        except Reject as error:
            raise Reject(f"{path}: {error}") from None
        raise


def _checked(path: Path, check: Callable[[dict[str, JsonValue]], T]) -> T:
    try:
        return check(read_toml(path.read_text()))
    except FileNotFoundError:
        raise Reject(f"there is no task file {path}; examples/ holds some to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Reject(f"cannot read task file {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise Reject(f"{path} is not TOML: {error}") from None
    except Reject as error:
        raise Reject(f"{path}: {error}") from None

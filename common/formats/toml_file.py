"""TOML files whose tables have one type: pools, hosted environments, tool servers."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from common.formats.strict_json import TOO_LONG
from common.formats.wrong_values import complaints

K = TypeVar("K", bound=str)
T = TypeVar("T")


class TomlFileError(Exception):
    """A file is invalid. The text is a predicate without the file's name ("is not UTF-8 (…)"), because a service's users must not see its
    paths."""


def read_toml(text: str) -> dict[str, Any]:
    """Parse TOML. Raises: tomllib.TOMLDecodeError."""
    try:
        return tomllib.loads(text)
    except ValueError as error:
        raise tomllib.TOMLDecodeError(TOO_LONG) if "set_int_max_str_digits" in str(error) else error from None


def read_tables(path: Path, tables: TypeAdapter[dict[K, T]], *, only: Sequence[str] = (), without: Sequence[str] = ()) -> dict[K, T]:
    """Tables of `path` by name. `only`: names to read; empty: all. `without`: names to skip.

    Raises: TomlFileError, naming the invalid field.
    """
    try:
        found = read_toml(path.read_text(encoding="utf-8"))
        return tables.validate_python({name: one for name, one in found.items() if (not only or name in only) and name not in without})
    except FileNotFoundError:
        raise TomlFileError("does not exist") from None
    except OSError as error:
        raise TomlFileError(f"cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise TomlFileError(f"is not UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise TomlFileError(f"is not TOML: {error}") from None
    except ValidationError as error:
        raise TomlFileError(f"is wrong: {'; '.join(complaints(error))}") from None

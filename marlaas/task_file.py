"""Task files: TOML, checked before it is sent."""

import tomllib
from pathlib import Path

from common.errors import Reject
from common.spec import TaskSpec, parse_spec


def read_task(path: Path) -> TaskSpec:
    """Raises: Reject, naming the file and every wrong field."""
    try:
        return parse_spec(tomllib.loads(path.read_text()))
    except FileNotFoundError:
        raise Reject(f"there is no task file {path}; examples/ holds some to start from") from None
    except (OSError, UnicodeDecodeError) as error:
        raise Reject(f"cannot read task file {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise Reject(f"{path} is not TOML: {error}") from None
    except Reject as error:
        raise Reject(f"{path}: {error}") from None

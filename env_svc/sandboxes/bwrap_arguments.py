"""Arguments of `bwrap` that all of its sandboxes have: privileges, parent folders, and what of the machine is seen."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from env_svc.sandboxes.kernel import DEVICES, LIBRARIES

KEPT_BY_ROOT = ("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID")
"""Privileges where the service is root: the first program needs both to change its user, and loses them by that."""
OF_NO_USER = ("--unshare-user", "--disable-userns", "--cap-drop", "ALL", "--uid", "65534", "--gid", "65534")
"""Elsewhere: none, in a user namespace."""


def parent_folders(paths: Iterable[str], *, below: str = "/") -> list[str]:
    """Make the folders above bound paths, which would otherwise be readable by root alone. `below`: only those within it."""
    folders = sorted({str(above) for path in paths for above in Path(path).parents if str(above) != "/" and str(above).startswith(below)})
    return [argument for folder in folders for argument in ("--perms", "0755", "--dir", folder)]


def visible(read: Sequence[str], write: Sequence[str] = ()) -> list[str]:
    """Bind libraries and `read` so that they cannot be changed, then `write` and devices."""
    bound = [("--ro-bind-try", one) for one in LIBRARIES] + [("--ro-bind", one) for one in read] + [("--bind", one) for one in write]
    return [argument for option, path in (*bound, *(("--dev-bind", one) for one in DEVICES)) for argument in (option, path, path)]

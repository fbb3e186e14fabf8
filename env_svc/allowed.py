"""Names that tasks may give for environments and tools: the operator's list `MARLAAS_ENV_ALLOWED`, entries separated by commas.

    installed               every installed, built-in or hosted one, and no `module:attribute`; the default
    my_package.games:*      those that match a pattern with `*` and `?`
    acme=acme_games.*:*     the same, for tasks of tenant acme alone
    *                       any: a task can then import every module that the replica finds
    _operator=*             the same, for tasks of the operator: of tenants without an account, or by an operators' key. What `marlaas up`
                            adds to `installed`

A name is compared before anything is imported, because importing a module runs it. Environments of packages that the task's tenant has
uploaded (`own:…`) need no entry if a replica serves them: they run in their own sandboxes. Files (`file:…`) need no entry either: they
contain only rows. Tools that packages name need an entry, as the package's tenant chooses them.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from common.errors import Fatal
from common.messages import OWN_FAMILY, is_file
from common.spec import EnvironmentSection
from common.streams import OPERATOR
from env_svc import registry
from env_svc.options import close_matches
from env_svc.tools import registry as tool_registry

INSTALLED = "installed"
"""Entry for every installed, built-in or hosted environment and tool."""
ENTRY = re.compile(r"^(?:(?P<tenant>[a-z0-9-]+|_operator)=)?(?P<pattern>[A-Za-z0-9_.:*?-]+)$")

Kind = Literal["environment", "tool"]


class AllowedNames:
    """The operator's list."""

    def __init__(self, entries: str, hosted: Sequence[str] = (), *, serves_own: bool = False) -> None:
        """`entries`: as in the setting; empty: `installed`. `hosted`: families of hosted environments. `serves_own`: whether this replica
        plays packages of tenants. Raises: Fatal for a wrong entry."""
        self._families = {*registry.families(), *hosted} - {registry.MODULE_FAMILY}
        self._serves_own = serves_own
        self._of_all, self._of_tenants = _parsed(entries)

    def objection(self, tenant: str, environment: EnvironmentSection, *, by_operator: bool) -> str | None:
        """Message that refuses the first name in a task's section that `tenant` may not use, with the allowed names; None: all are allowed.

        `by_operator`: whether the operator submitted the task.
        """
        given: list[tuple[Kind, str]] = [("environment", environment.name), *(("tool", tool.name) for tool in environment.tools)]
        entries = [*self._of_all, *self._of_tenants.get(tenant, ()), *(self._of_tenants.get(OPERATOR, ()) if by_operator else ())]
        return next((self._refusal(kind, name, entries) for kind, name in given if not self._is_allowed(kind, name, entries)), None)

    def tool_objection(self, name: str, tenant: str | None = None) -> str | None:
        """As `objection`, for a tool that an opening names. `tenant`: owner of the environment's package; None: the operator chose the
        environment, so entries for all tenants and for the operator apply, whichever tenant owns the task."""
        entries = [*self._of_all, *self._of_tenants.get(OPERATOR if tenant is None else tenant, ())]
        return None if self._is_allowed("tool", name, entries) else self._refusal("tool", name, entries)

    def _is_allowed(self, kind: Kind, name: str, entries: Sequence[str]) -> bool:
        if kind == "environment" and name.partition(":")[0] == OWN_FAMILY:
            return self._serves_own
        if kind == "environment" and is_file(name):
            return True
        return any(self._is_installed(kind, name) if entry == INSTALLED else fnmatchcase(name, entry) for entry in entries)

    def _is_installed(self, kind: Kind, name: str) -> bool:
        """Whether `name` can only import installed packages. Unknown names pass: the registry reports similar ones."""
        head, colon, _ = name.partition(":")
        return not colon or (kind == "environment" and head in self._families)

    def _refusal(self, kind: Kind, name: str, entries: Sequence[str]) -> str:
        known = sorted(self._families) if kind == "environment" else tool_registry.names()
        listed = [f"installed ({', '.join(known)})" if entry == INSTALLED else entry for entry in entries] or ["none"]
        near = close_matches(name.partition(":")[0], known) if INSTALLED in entries else ""
        return f"{kind} '{name:.100}' is not allowed here{near}; the operator allows (MARLAAS_ENV_ALLOWED): {', '.join(listed)}"


def _parsed(entries: str) -> tuple[list[str], Mapping[str, list[str]]]:
    """Entries for all tenants, and entries by tenant."""
    of_all: list[str] = []
    of_tenants: dict[str, list[str]] = {}
    for entry in filter(None, map(str.strip, (entries or INSTALLED).split(","))):
        found = ENTRY.match(entry)
        if found is None:
            raise Fatal(f"MARLAAS_ENV_ALLOWED: '{entry}' is no pattern of names, such as my_package.games:* or acme=my_package.games:*")
        (of_all if found["tenant"] is None else of_tenants.setdefault(found["tenant"], [])).append(found["pattern"])
    return of_all, of_tenants


ONLY_INSTALLED = AllowedNames(INSTALLED)
"""The list if the operator sets none."""

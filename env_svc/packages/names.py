"""Names of tenants' own environments, `own:<environment>[@<digest>]`, and the wheel that one may lead to. Pure."""

import re
from dataclasses import dataclass

from common.messages import OWN_FAMILY, BlobRef, own_name, wheel_name
from common.spec.sections import OWN_PATTERN
from env_svc.errors import WrongOptions

NAME = re.compile(rf"^{OWN_PATTERN}$")


@dataclass(frozen=True)
class OwnEnvironmentKey:
    """One environment of one package of one tenant. Processes are shared by those with equal keys alone."""

    tenant: str
    package: str
    """SHA-256 of its wheel."""
    environment: str

    @property
    def name(self) -> str:
        return own_name(self.environment)


def key_of(tenant: str, name: str, wheel: BlobRef | None) -> OwnEnvironmentKey:
    """What a task of `tenant` names. Raises: WrongOptions, also for a wheel that is not this tenant's: messages can be forged."""
    found = NAME.match(name)
    if found is None:
        raise WrongOptions(f"'{name:.100}' names no environment of a package: expected {OWN_FAMILY}:<environment>[@<digest>]")
    if wheel is None:
        raise WrongOptions(f"environment '{name:.100}' comes without its package: upload one that has it")
    if wheel.name != wheel_name(tenant, wheel.sha256) or not wheel.sha256.startswith(found["digest"] or ""):
        raise WrongOptions(f"environment '{name:.100}': {wheel.name} is no such package of tenant {tenant}")
    return OwnEnvironmentKey(tenant, wheel.sha256, found["environment"])

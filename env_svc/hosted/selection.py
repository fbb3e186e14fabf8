"""Choice of the sandbox of hosted processes by the settings, with a trial."""

from collections.abc import Mapping

import structlog

from common.errors import Fatal
from common.messages import OWN_FAMILY
from env_svc.hosted.config import HostedConfig
from env_svc.hosted.confinement import Confinement, NotConfined, find_confinement
from env_svc.settings import EnvSettings

log = structlog.get_logger()


async def choose_confinement(settings: EnvSettings, hosted: Mapping[str, HostedConfig]) -> Confinement | None:
    """The sandbox for `hosted`; None where they run with the service's rights. Raises: Fatal where one is required and is not there."""
    if not hosted or settings.hosts_sandbox == "none":
        return None
    outside = [name for name, one in hosted.items() if not one.sandbox]
    if outside and settings.hosts_sandbox == "required":
        raise Fatal(f"MARLAAS_ENV_HOSTS_SANDBOX is 'required', and the table of '{outside[0]}' says sandbox = false: change one of the two")
    try:
        found = await find_confinement(settings.hosts_cgroup)
    except NotConfined as error:
        if settings.hosts_sandbox == "required":
            raise Fatal(f"MARLAAS_ENV_HOSTS_SANDBOX is 'required', and this machine has no sandbox for hosts: {error}") from None
        log.warning("hosts_not_confined", environments=sorted(hosted), reason=str(error))
        return None
    log.info("hosts_confined", meaning=found.meaning, outside=outside)
    return found


async def choose_own_confinement(settings: EnvSettings, found: Confinement | None) -> Confinement | None:
    """The sandbox for packages of tenants; None where this replica plays none. `found`: that of the operator's hosts, if there is one.

    Raises: Fatal where one is required and is not there.
    """
    if settings.own == "none" or (settings.family_names and OWN_FAMILY not in settings.family_names):
        return None
    try:
        return found or await find_confinement(settings.hosts_cgroup)
    except NotConfined as error:
        if settings.own == "required":
            raise Fatal(f"MARLAAS_ENV_OWN is 'required', and this machine has no sandbox for packages of tenants: {error}") from None
        log.warning("own_not_served", reason=str(error))
        return None

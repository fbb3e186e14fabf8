"""Selection of the sandbox by the settings, with a trial run at the start."""

import structlog

from common.errors import Fatal
from env_svc.sandboxes.sandbox import Sandbox
from env_svc.settings import EnvSettings

AUTO = ("bubblewrap", "docker", "confined", "monty")
"""Order in which `auto` tries the sandboxes: CPython wherever that is safe."""

log = structlog.get_logger()


async def start_sandbox(settings: EnvSettings) -> Sandbox | None:
    """The sandbox that `settings` name, started; None for `none`. Raises: Fatal when the named one does not work, or none does."""
    if settings.sandbox == "none":
        return None
    kinds = AUTO if settings.sandbox == "auto" else (settings.sandbox,)
    reasons: list[str] = []
    for kind in kinds:
        if settings.sandbox == "auto" and kind == "docker" and not settings.docker_url:
            reasons.append("MARLAAS_ENV_DOCKER_URL names no Docker engine")
            continue
        sandbox = sandbox_of(kind, settings)
        try:
            await sandbox.start()
        except Fatal as error:
            await sandbox.close()
            if len(kinds) == 1:
                raise
            reasons.append(str(error))
            continue
        log.info("sandbox_chosen", sandbox=sandbox.name, meaning=sandbox.meaning, passed_over=reasons)
        return sandbox
    raise Fatal(f"no sandbox works on this machine: {'; '.join(reasons)}")


def sandbox_of(kind: str, settings: EnvSettings) -> Sandbox:
    """A sandbox of this kind, not started. Raises: Fatal for `docker` without an engine's URL."""
    match kind:
        case "bubblewrap":
            from env_svc.sandboxes.bubblewrap import BubblewrapSandbox

            return BubblewrapSandbox(settings.sandbox_runs)
        case "docker":
            from env_svc.sandboxes.docker import DockerSandbox

            if not settings.docker_url:
                advice = "name a rootless engine or a socket proxy: docs/environments.md#an-engine-for-docker"
                raise Fatal(f"the sandbox 'docker' needs MARLAAS_ENV_DOCKER_URL: access to an engine is root on its host; {advice}")
            return DockerSandbox(settings.docker_url, settings.sandbox_image, settings.sandbox_runs, settings.sandbox_warm)
        case "confined":
            from env_svc.sandboxes.confined import ConfinedSandbox

            return ConfinedSandbox(settings.sandbox_runs)
        case _:
            from env_svc.sandboxes.monty import MontySandbox

            return MontySandbox(settings.sandbox_runs)

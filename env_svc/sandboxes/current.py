"""The sandbox of this process: chosen by the settings, with a trial run at the start; tools and environments get it when they are built.

It is not an option of a task: the operator of a replica decides where code may run.
"""

import structlog

from common.errors import Fatal
from env_svc.errors import Unsupported, WrongOptions
from env_svc.sandboxes.sandbox import Sandbox
from env_svc.settings import EnvSettings

WAY_OUT = "run the environment service with MARLAAS_ENV_SANDBOX=bubblewrap, docker or confined, which run CPython"

_current: Sandbox | None = None


AUTO = ("bubblewrap", "docker", "confined", "monty")
"""Order in which `auto` tries the sandboxes: CPython first, if safe."""


log = structlog.get_logger()


def use(sandbox: Sandbox | None) -> None:
    """Set the sandbox of this process. None: code that a policy wrote is refused."""
    global _current
    _current = sandbox


def current(wanted_by: str) -> Sandbox:
    """The sandbox of this process. Raises: WrongOptions when there is none: a policy's code never runs elsewhere."""
    if _current is None:
        raise WrongOptions(f"{wanted_by} runs code that a policy wrote, and this process has no sandbox for it: see MARLAAS_ENV_SANDBOX")
    return _current


def refuse_unsupported(sandbox: Sandbox, source: str, *errors: str) -> None:
    """Raises: Unsupported if a program failed because the sandbox lacks a feature, or runs it differently."""
    missing = [found for error in errors if error and (found := sandbox.unsupported(error)) is not None]
    for found in missing or [sandbox.differs(source)]:
        if found is not None:
            raise Unsupported(f"the sandbox '{sandbox.name}' cannot run this program ({found[:200]}); {WAY_OUT}")


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

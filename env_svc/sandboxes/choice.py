"""The sandbox that the settings choose."""

from env_svc.sandboxes.sandbox import Sandbox
from env_svc.settings import EnvSettings


def chosen(settings: EnvSettings) -> Sandbox | None:
    """Not started yet; None when code that a policy wrote is refused."""
    match settings.sandbox:
        case "none":
            return None
        case "monty":
            from env_svc.sandboxes.monty import MontySandbox

            return MontySandbox(settings.sandbox_runs)
        case "bubblewrap":
            from env_svc.sandboxes.bubblewrap import BubblewrapSandbox

            return BubblewrapSandbox(settings.sandbox_runs)
        case "docker":
            from env_svc.sandboxes.docker import DockerSandbox

            return DockerSandbox(settings.docker_url, settings.sandbox_image, settings.sandbox_runs, settings.sandbox_warm)

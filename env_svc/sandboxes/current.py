"""The sandbox of this process: set once by `__main__`, asked for when a tool or an environment is built.

Not an option of a task: where code may run is for the operator of a replica to say.
"""

from env_svc.errors import Unsupported, WrongOptions
from env_svc.sandboxes.sandbox import Sandbox

WAY_OUT = "run the environment service with MARLAAS_ENV_SANDBOX=bubblewrap, docker or confined, which run CPython"

_current: Sandbox | None = None


def use(sandbox: Sandbox | None) -> None:
    """From now on. None: code that a policy wrote is refused."""
    global _current
    _current = sandbox


def current(wanted_by: str) -> Sandbox:
    """Where code runs that a policy wrote. Raises: WrongOptions when there is none: such code never runs elsewhere."""
    if _current is None:
        raise WrongOptions(f"{wanted_by} runs code that a policy wrote, and this process has no sandbox for it: see MARLAAS_ENV_SANDBOX")
    return _current


def refuse_unsupported(sandbox: Sandbox, source: str, *errors: str) -> None:
    """Raises: Unsupported where a program ended with an error for want of something in the sandbox, or means something else there."""
    missing = [found for error in errors if error and (found := sandbox.unsupported(error)) is not None]
    for found in missing or [sandbox.differs(source)]:
        if found is not None:
            raise Unsupported(f"the sandbox '{sandbox.name}' cannot run this program ({found[:200]}); {WAY_OUT}")

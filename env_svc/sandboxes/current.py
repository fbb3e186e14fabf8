"""The sandbox of this process: `__main__` sets it once, tools and environments get it when they are built.

It is no option of a task: the operator of a replica decides where code may run.
"""

from env_svc.errors import Unsupported, WrongOptions
from env_svc.sandboxes.sandbox import Sandbox

WAY_OUT = "run the environment service with MARLAAS_ENV_SANDBOX=bubblewrap, docker or confined, which run CPython"

_current: Sandbox | None = None


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
    """Raises: Unsupported where a program failed because the sandbox lacks something, or has another meaning in it."""
    missing = [found for error in errors if error and (found := sandbox.unsupported(error)) is not None]
    for found in missing or [sandbox.differs(source)]:
        if found is not None:
            raise Unsupported(f"the sandbox '{sandbox.name}' cannot run this program ({found[:200]}); {WAY_OUT}")

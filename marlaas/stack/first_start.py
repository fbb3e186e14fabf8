"""What a stack has before its first start: keys, passwords and PostgreSQL's folder."""

from pathlib import Path

from marlaas import missing_packages as needs
from marlaas.stack import database_folder, keys
from marlaas.stack.state_files import StackError, StackPlan, is_locked, locked, prepare_folder


def refuse_running(data: Path) -> None:
    """Raises: StackError when a stack runs on `data`."""
    if is_locked(data):
        raise StackError(f"a stack runs on {data}; next: marlaas down")


def make_ready(plan: StackPlan) -> Path:
    """Make what is missing of a stack that does not run; returns the folder of its keys. May be repeated.

    Raises: StackError when it runs, or packages are missing; Fatal when others can read its keys.
    """
    assert plan.keys is not None
    if missing := needs.missing_packages():
        raise StackError(needs.sentence(missing))
    prepare_folder(plan.data)
    with locked(plan.data):
        (plan.data / "plan.json").write_text(plan.model_dump_json(indent=2))
        keys.prepared(plan.keys, plan.data / "nats", plan.deployment)
        database_folder.prepare(plan.data / "postgres")
    return plan.keys

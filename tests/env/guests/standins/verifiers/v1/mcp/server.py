import contextvars
from typing import Any

_call_state: contextvars.ContextVar[Any] = contextvars.ContextVar("vf_call_state", default=None)

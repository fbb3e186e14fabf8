import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def hook_boundary(handler: Callable[..., Any], *, allow_trace: bool) -> type:
    hints = get_type_hints(handler)
    (kind,) = [hints[name] for name in inspect.signature(handler).parameters if name in hints]
    return kind


async def call_hook(handler: Callable[..., Any], available: dict[type, Any]) -> Any:
    (value,) = available.values()
    result = handler(value)
    return await result if inspect.isawaitable(result) else result

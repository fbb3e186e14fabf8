import inspect
from collections.abc import Callable
from typing import Any


def discover_decorated(obj: object, attr: str) -> list[Callable[..., Any]]:
    names = {name for kind in type(obj).__mro__ for name, value in vars(kind).items() if callable(value) and hasattr(value, attr)}
    return [getattr(obj, name) for name in sorted(names)]


def invoke(function: Callable[..., Any], available: dict[Any, Any]) -> Any:
    return function(**{name: available[name] for name in inspect.signature(function).parameters if name in available})

from typing import Any, get_args

from pydantic import BaseModel


class State(BaseModel):
    pass


def state_cls(cls: Any) -> type[State]:
    """The one among a class's type arguments that is a state."""
    bases = [base for kind in cls.__mro__ for base in vars(kind).get("__orig_bases__", ())]
    found = [one for base in bases for one in get_args(base) if isinstance(one, type) and issubclass(one, State)]
    return found[0] if found else State

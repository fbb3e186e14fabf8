from pydantic import BaseModel


class State(BaseModel):
    pass


def state_cls(cls: type) -> type[State]:
    return State

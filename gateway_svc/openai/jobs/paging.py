"""Pages of OpenAI's lists: the newest first, after the id of the last one before."""

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel

T = TypeVar("T", bound=BaseModel)


class Page(BaseModel, Generic[T]):
    object: Literal["list"] = "list"
    data: list[T]
    has_more: bool
    first_id: str | None = None
    last_id: str | None = None


def page_of(found: list[T], limit: int) -> Page[T]:
    """`found`: what follows, one more than `limit` where there is more."""
    kept = found[:limit]
    ids = [str(getattr(one, "id", "")) for one in kept]
    return Page(data=kept, has_more=len(found) > limit, first_id=ids[0] if ids else None, last_id=ids[-1] if ids else None)

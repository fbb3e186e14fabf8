"""LRU cache."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LRUCache(Generic[K, V]):
    """LRU cache of at most `max_size` values, constructed at first use."""

    def __init__(self, max_size: int) -> None:
        self._max_size = max_size
        self._values: OrderedDict[K, V] = OrderedDict()

    def get(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`; a new one evicts the least recently used."""
        if key not in self._values:
            self._values[key] = make()
        self._values.move_to_end(key)
        value = self._values[key]
        if len(self._values) > self._max_size:
            self._values.popitem(last=False)
        return value

    def peek(self, key: K) -> V | None:
        """The value of `key` if it is cached."""
        return self._values.get(key)

    def forget(self, key: K) -> None:
        self._values.pop(key, None)

"""Cache of a worker process's environments, by name and options: one object serves all episodes and tasks that name them."""

import json

from pydantic import JsonValue

from common.caches import LRUCache
from env_svc.registry import AnyEnvironment, build

MAX_BUILT = 256


class EnvironmentCache:
    """The most recently used environments."""

    def __init__(self) -> None:
        self._environments: LRUCache[tuple[str, str], AnyEnvironment] = LRUCache(MAX_BUILT)

    def get(self, name: str, options: dict[str, JsonValue]) -> AnyEnvironment:
        """The environment, built at first use. Raises: UnknownEnvironment, WrongOptions."""
        key = (name, json.dumps(options, sort_keys=True))
        return self._environments.get(key, lambda: build(name, options))

"""Environments of a worker process that are built already, by name and options: one object serves every episode and task
that names them."""

import json

from pydantic import JsonValue

from env_svc.concurrency.lru_cache import LRUCache
from env_svc.registry import AnyEnvironment, build

MAX_BUILT = 256


class EnvironmentCache:
    """The environments that were used most recently."""

    def __init__(self) -> None:
        self._environments: LRUCache[tuple[str, str], AnyEnvironment] = LRUCache(MAX_BUILT)

    def get(self, name: str, options: dict[str, JsonValue]) -> AnyEnvironment:
        """The environment, built unless it was before. Raises: UnknownEnvironment, WrongOptions."""
        key = (name, json.dumps(options, sort_keys=True))
        return self._environments.get(key, lambda: build(name, options))

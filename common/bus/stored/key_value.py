"""Key-value buckets: small values that several processes share."""

from collections.abc import AsyncIterator, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog
from nats.errors import Error as NatsError
from nats.js.errors import APIError, BucketNotFoundError, KeyNotFoundError, KeyWrongLastSequenceError
from nats.js.kv import KeyValue

from common.bus.stored.stream_reader import fill
from common.bus.transport.connection import Connection, unavailable_as
from common.errors import Reject, Retry, Unavailable
from common.messages import Message
from common.streams import value_subject

M = TypeVar("M", bound=Message)

MAX_EMPTY_READS = 3
"""Maximum attempts to read a bucket that looks empty, but has entries by NATS's count. The entries may be late, or only markers that
deleted entries leave for a while."""

WRONG_REVISION = (10071, 10164)
"""JetStream's error codes for an entry whose revision is not the expected one."""

FILLING = "filling"
"""Key of messages that `erase` stores only to fill a file; readers take them for markers of a deleted entry."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Revised(Generic[M]):
    """An entry and its revision."""

    value: M
    revision: int


class KeyValueStore:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._buckets: dict[str, KeyValue] = {}

    async def put(self, bucket: str, key: str, value: Message) -> None:
        """Set an entry, readable as JSON by any NATS client."""
        store = await self._bucket(bucket)
        await store.put(key, value.model_dump_json().encode())

    async def get(self, bucket: str, key: str, model: type[M]) -> M | None:
        """The entry's value; None if it does not exist. Raises: Unavailable if NATS does not answer."""
        found = await self.find(bucket, key, model)
        return found.value if found else None

    async def find(self, bucket: str, key: str, model: type[M]) -> Revised[M] | None:
        """An entry with its revision, for `replace`; None if it does not exist."""
        with unavailable_as(f"read {key} of {bucket}"):
            try:
                entry = await (await self._bucket(bucket)).get(key)
            except KeyNotFoundError:
                return None
        return Revised(model.decode(entry.value or b""), entry.revision or 0)

    async def replace(self, bucket: str, key: str, value: Message, *, revision: int) -> int:
        """Set an entry that still has `revision` (0: must not exist); returns its new revision.

        Raises: Retry if another process has set the entry; Unavailable if NATS does not answer: the entry may have been set, or not.
        """
        body = value.model_dump_json().encode()
        with unavailable_as(f"set {key} of {bucket}"):
            store = await self._bucket(bucket)
            try:
                return await (store.update(key, body, last=revision) if revision else store.create(key, body))
            except (KeyWrongLastSequenceError, KeyNotFoundError):  # the latter: `create` found an entry that expired meanwhile
                raise Retry(f"{key} of {bucket} was set by another process") from None

    async def values(self, bucket: str, model: type[M], keys: str = ">") -> list[M]:
        """Values of all current entries whose keys match the pattern `keys`."""
        return [*(await self.entries(bucket, model, keys)).values()]

    async def entries(self, bucket: str, model: type[M], keys: str = ">") -> dict[str, M]:
        """Current entries by key, for keys that match the pattern `keys`."""
        store = await self._bucket(bucket)
        found: dict[str, M] = {}
        for _ in range(MAX_EMPTY_READS):
            found = await self._entries(store, bucket, model, keys)
            # nats-py reports the end of the values when the server has none left, before those in flight have arrived.
            if found or not (await store.status()).values:
                break
        return found

    async def _entries(self, store: KeyValue, bucket: str, model: type[M], keys: str) -> dict[str, M]:
        watcher = await store.watch(keys, ignore_deletes=True, inactive_threshold=self._connection.timings.reader_s)
        found: dict[str, M] = {}
        try:
            async for entry in watcher:
                if entry is None:
                    break
                try:
                    found[entry.key] = model.decode(entry.value or b"")
                except Reject as error:
                    log.warning("value_unreadable", bucket=bucket, key=entry.key, error=str(error))
        finally:
            await watcher.stop()
        return found

    async def delete(self, bucket: str, key: str) -> None:
        with suppress(KeyNotFoundError, NatsError):
            await (await self._bucket(bucket)).delete(key)

    async def release(self, bucket: str, key: str, *, revision: int) -> None:
        """Delete an entry that still has `revision`. Raises: Retry if another process has set it; Unavailable."""
        with unavailable_as(f"delete {key} of {bucket}"):
            try:
                await (await self._bucket(bucket)).delete(key, last=revision)
            except APIError as error:
                if error.err_code not in WRONG_REVISION:
                    raise
                raise Retry(f"{key} of {bucket} was set by another process") from None

    async def remove(self, bucket: str, keys: Collection[str]) -> None:
        """Remove entries completely: no marker is left, as `delete` leaves one, which takes space. Watchers are not notified. Raises:
        Unavailable."""
        with unavailable_as(f"remove entries of {bucket}"):
            for key in keys:
                await self._connection.js.purge_stream(f"KV_{bucket}", subject=value_subject(bucket, key))

    async def keys(self, bucket: str) -> set[str]:
        """Keys of all entries, including deleted ones that have left a marker. Raises: Unavailable."""
        start = value_subject(bucket, "")
        with unavailable_as(f"look at {bucket}"):
            info = await self._connection.js.stream_info(f"KV_{bucket}", subjects_filter=">")
        return {subject.removeprefix(start) for subject in info.state.subjects or {}}

    async def filled_share(self, bucket: str) -> float:
        """Used fraction of the bucket's size limit; 0 if it has none. Raises: Unavailable."""
        with unavailable_as(f"look at {bucket}"):
            info = await self._connection.js.stream_info(f"KV_{bucket}")
        most = info.config.max_bytes or -1
        return info.state.bytes / most if most > 0 else 0.0

    async def erase(self, bucket: str, keys: Collection[str]) -> None:
        """Remove entries, and erase the bytes of all earlier values of the bucket from NATS's files. Raises: Unavailable.

        A bucket does not permit erasure of single messages. So every entry that remains is stored again, in a new file. The old files then
        contain no entry, and NATS removes them. An entry that another process sets meanwhile is already in the new file.
        """
        stream, filling = f"KV_{bucket}", value_subject(bucket, FILLING)
        with unavailable_as(f"erase entries of {bucket}"):
            store, js = await self._bucket(bucket), self._connection.js
            for key in keys:
                await js.purge_stream(stream, subject=value_subject(bucket, key))
            await fill(js, filling, {"KV-Operation": "DEL"})
            for subject in (await js.stream_info(stream, subjects_filter=">")).state.subjects or {}:
                with suppress(KeyNotFoundError, KeyWrongLastSequenceError):
                    entry = await store.get(subject.removeprefix(value_subject(bucket, "")))
                    await store.update(entry.key, entry.value or b"", last=entry.revision)
            await js.purge_stream(stream, subject=filling)

    async def watch(self, bucket: str, model: type[M]) -> AsyncIterator[tuple[str, M | None]]:
        """(key, value) of every entry, then of every change; value None for a deletion. Expiry of an entry is not reported."""

        async def watch() -> KeyValue.KeyWatcher:
            return await (await self._bucket(bucket)).watchall()

        watcher = await self._connection.retry_until_ready(watch)
        try:
            async for entry in watcher:
                if entry is None:
                    continue
                try:
                    yield entry.key, model.decode(entry.value) if entry.operation is None and entry.value else None
                except Reject as error:  # one bad entry must not stop the readers of the others
                    log.warning("value_unreadable", bucket=bucket, key=entry.key, error=str(error))
        finally:
            await watcher.stop()

    async def _bucket(self, bucket: str) -> KeyValue:
        """The bucket, looked up once. Raises: BucketNotFoundError; Unavailable if NATS does not answer."""
        if bucket in self._buckets:
            return self._buckets[bucket]
        try:
            found = self._buckets[bucket] = await self._connection.js.key_value(bucket)
            return found
        except BucketNotFoundError:
            raise
        except (TimeoutError, NatsError, OSError) as error:
            raise Unavailable(f"could not open bucket {bucket}: {error}") from None

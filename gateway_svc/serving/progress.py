"""Progress of one request over its attempts: what came, from whom, and whether anything is missing. Pure.

An attempt belongs to the first replica that is heard of it. What others send of it, and what comes of earlier attempts, is not wanted:
they are told to stop. An attempt whose deltas have a gap, or whose replica is silent, is lost, and the next one continues behind the
tokens that the client was given, so none comes twice and none is missing.
"""

from common.messages import ServedDelta

SILENT_S = 2.0
"""Seconds without a sign of life after which a replica counts as dead; it gives one every ALIVE_S."""


class Progress:
    def __init__(self) -> None:
        self.attempt = 0
        self.ids = b""
        """Tokens so far, (N,) int32."""
        self.replica: str | None = None
        """Replica that has the attempt; None until it is heard of."""
        self.is_lost = False
        self._next = 0
        self._seen_s = 0.0
        self._has_begun = False

    def begin_next(self) -> None:
        """The next attempt."""
        self.attempt += 1
        self.replica, self.is_lost, self._next = None, False, 0

    def hear(self, replica: str, attempt: int, now_s: float) -> bool:
        """A sign of life of a replica that has an attempt; False where it is not wanted there."""
        if attempt != self.attempt or self.is_lost or self.replica not in (None, replica):
            return False
        self.replica, self._seen_s = replica, now_s
        return True

    def take(self, replica: str, delta: ServedDelta, now_s: float) -> ServedDelta | None:
        """The delta as the client gets it; None where it is not wanted, came before, or shows that another is missing (`is_lost`)."""
        if not self.hear(replica, delta.attempt, now_s) or delta.number < self._next:
            return None
        if delta.number > self._next or delta.failure == "engine_lost" or (delta.failure == "overdue" and self.ids):
            self.is_lost = True
            return None
        self._next += 1
        self.ids += delta.ids
        if self._has_begun and (delta.prompt_tokens is not None or delta.fingerprint):
            delta = delta.model_copy(update={"prompt_tokens": None, "fingerprint": ""})
        self._has_begun = True
        return delta

    def is_silent(self, now_s: float) -> bool:
        """Whether the replica that has the attempt has died."""
        return self.replica is not None and now_s - self._seen_s > SILENT_S

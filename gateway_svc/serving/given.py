"""Tokens that the client of one request was given, as its deltas say: what it is told, and what is booked."""

from dataclasses import dataclass

from common.messages import ServedDelta

ID_BYTES = 4


@dataclass
class Given:
    prompt: int | None = None
    """None before the first delta."""
    cached: int = 0
    sampled: int = 0

    def add(self, delta: ServedDelta) -> None:
        """Of a second attempt the prompt is the same, and counts once."""
        self.prompt = delta.prompt_tokens if self.prompt is None else self.prompt
        self.cached = delta.cached_tokens if delta.cached_tokens is not None else self.cached
        self.sampled += len(delta.ids) // ID_BYTES

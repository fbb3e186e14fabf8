"""Stop strings: find the token of a reply that completes one. The engine knows tokens only, and strings may lie across several."""

from collections.abc import Sequence
from typing import Any


class StopStrings:
    """Reads the tokens of one reply in order."""

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        """`tokenizer`: of the library tokenizers, whose classes are untyped."""
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        self._overlap = max(len(string) for string in strings) - 1
        self._stream = _decoder()
        self._tail = ""
        """End of the text so far, as long as it may be the beginning of a string."""

    def tokens_after(self, ids: Sequence[int]) -> int | None:
        """Reads the next tokens: how many of them follow the one that completes a string; None where none does yet.

        That token may spell more than the end of the string.
        """
        for place, token in enumerate(ids):
            text = self._tail + self._decoded(token)
            if any(string in text for string in self._strings):
                return len(ids) - place - 1
            self._tail = text[-self._overlap :] if self._overlap else ""
        return None

    def _decoded(self, token: int) -> str:
        """Text that the token adds; nothing while the bytes of a character are incomplete."""
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception:  # the library's, where bytes that are no text change how those before them are decoded
            self._stream = _decoder()
            return self._stream.step(self._tokenizer, token) or ""


def _decoder() -> Any:
    from tokenizers.decoders import DecodeStream

    return DecodeStream(skip_special_tokens=False)

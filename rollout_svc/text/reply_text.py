"""Text of a reply, decoded token by token: complete characters, and stop strings, which may span several tokens.

Pure. The output depends on the tokens alone, not on how they were grouped: an attempt that continues another feeds the earlier tokens
first, discards their text, and continues at exactly the same character.
"""

from collections.abc import Callable, Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""Output of decoders for invalid bytes; at the end of a text the next token may complete them to a character."""
MAX_WINDOW = 32
"""Maximum tokens decoded again with each new one, if a policy samples bytes that are no valid text."""


class Detokenizer:
    """Decodes one reply token by token.

    A window of the latest tokens is decoded each time, as decoders may treat the first token of a text differently, and a token may hold
    part of a character. `tokenizers.decoders.DecodeStream` raises for some invalid sequences, which a policy may well sample.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._whole = 0
        """Number of tokens in the window whose characters were emitted; they remain as context."""
        self._given = 0
        """Number of characters of the window's text that were emitted."""

    def feed(self, token: int) -> str:
        """Characters that this token completes."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) and len(self._window) - self._whole < MAX_WINDOW:
            return ""
        found = text[self._given :]
        self._window = self._window[self._whole :]
        self._whole, self._given = len(self._window), len(self._decode(self._window))
        return found

    def end(self) -> str:
        """Remaining text of an incomplete character."""
        return self._decode(self._window)[self._given :] if len(self._window) > self._whole else ""


class StopText:
    """Truncates a text at the first stop string completed in it; of those ending at the same place, the longest."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [string for string in strings if string]
        self._held = ""
        """End of the text that could be the start of a stop string."""
        self.found = False

    def feed(self, text: str) -> str:
        """Text that can no longer be part of a stop string; empty after one is found."""
        if self.found or not self._strings:
            return "" if self.found else text
        text = self._held + text
        ends = [(place + len(string), place) for string in self._strings if (place := text.find(string)) >= 0]
        if ends:
            self.found, self._held = True, ""
            return text[: min(ends)[1]]
        kept = max(overlap(text, string) for string in self._strings)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def end(self) -> str:
        held, self._held = self._held, ""
        return held


def overlap(text: str, string: str) -> int:
    """Length of the longest proper prefix of `string` that `text` ends with."""
    return next((size for size in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:size])), 0)


class StopStrings:
    """Finds stop strings in the tokens of one reply, read in order."""

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        """`tokenizer`: of the library tokenizers, whose classes are untyped."""
        self._tokenizer = tokenizer
        self._strings = tuple(strings)
        self._overlap = max(len(string) for string in strings) - 1
        self._stream = _decoder()
        self._tail = ""
        """End of the text so far, as far as a stop string may begin in it."""

    def tokens_after(self, ids: Sequence[int]) -> int | None:
        """Read the next tokens; return how many follow the token that completes a stop string, None if there is none yet.

        That token may spell more than the end of the string.
        """
        for place, token in enumerate(ids):
            text = self._tail + self._decoded(token)
            if any(string in text for string in self._strings):
                return len(ids) - place - 1
            self._tail = text[-self._overlap :] if self._overlap else ""
        return None

    def _decoded(self, token: int) -> str:
        """Text that the token adds; empty while the bytes of a character are incomplete."""
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception:  # the library raises if invalid bytes change the decoding of earlier ones
            self._stream = _decoder()
            return self._stream.step(self._tokenizer, token) or ""


def _decoder() -> Any:
    from tokenizers.decoders import DecodeStream

    return DecodeStream(skip_special_tokens=False)

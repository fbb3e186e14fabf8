"""Text of a reply as its tokens come: characters once they are whole, and stop strings, which may lie across several tokens.

Pure. What is given out depends on the tokens alone, not on how they were grouped: an attempt that continues another one feeds its tokens
first, drops what they give, and continues at exactly the same character.
"""

from collections.abc import Callable, Sequence
from typing import Any

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What decoders give for bytes that are no text: at the end of a text they may become a character with the next token."""
MAX_WINDOW = 32
"""Tokens that are decoded once more with each new one, at most, where a policy writes bytes that are no text."""


class Detokenizer:
    """Decodes one reply token by token.

    A window of the latest tokens is decoded each time, as decoders may treat the first token of a text otherwise, and a token may hold
    part of a character. `tokenizers.decoders.DecodeStream` refuses some sequences that are no text, which a policy may well sample.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._window: list[int] = []
        self._whole = 0
        """Tokens of the window whose characters are given out: context only."""
        self._given = 0
        """Characters of the window's text that are given out."""

    def feed(self, token: int) -> str:
        """Characters that are whole with this token."""
        self._window.append(token)
        text = self._decode(self._window)
        if text.endswith(REPLACEMENT) and len(self._window) - self._whole < MAX_WINDOW:
            return ""
        found = text[self._given :]
        self._window = self._window[self._whole :]
        self._whole, self._given = len(self._window), len(self._decode(self._window))
        return found

    def end(self) -> str:
        """What is left of an incomplete character."""
        return self._decode(self._window)[self._given :] if len(self._window) > self._whole else ""


class StopText:
    """Cuts a text at the first stop string that becomes complete in it, the longest of those that end at one place."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = [string for string in strings if string]
        self._held = ""
        """End of the text that could begin a string."""
        self.found = False

    def feed(self, text: str) -> str:
        """What no stop string can contain any more; nothing once one is found."""
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
    """Characters at the end of `text` that begin `string`, fewer than all of it."""
    return next((size for size in range(min(len(text), len(string) - 1), 0, -1) if text.endswith(string[:size])), 0)


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

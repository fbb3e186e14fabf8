"""Bytes of single tokens; decoded text does not show them if a character spans several tokens."""

import re
from typing import Any

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
"""Spelling of a byte token in tokenizers with byte fallback."""


MAX_CHARS_PER_BYTE = 2
"""Maximum growth by Unicode normalization: it joins three characters into two bytes, as u, two dots and an accent."""


class TokenBytes:
    def __init__(self, tokenizer: Any) -> None:  # of transformers, whose classes are loosely typed
        from tokenizers.decoders import ByteLevel

        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._is_bytes = backend is not None and isinstance(backend.decoder, ByteLevel)
        self._added = {id: token.content for id, token in tokenizer.added_tokens_decoder.items()}

    def of(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        spelled: str = self._tokenizer.convert_ids_to_tokens(token) or ""
        if self._is_bytes and all(char in BYTES for char in spelled):
            return bytes(BYTES[char] for char in spelled)
        if found := BYTE_TOKEN.fullmatch(spelled):
            return bytes([int(found[1], 16)])
        return str(self._tokenizer.decode([token], skip_special_tokens=False)).encode()


def _bytes() -> dict[str, int]:
    """Character → byte in byte-level vocabularies: printable bytes are spelled as themselves, others as characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


BYTES = _bytes()


def max_chars(tokenizer: Any) -> int | None:
    """Maximum characters that one token can stand for; None if unknown.

    Known if tokens together contain every byte of the text: a byte-level vocabulary, a normalization that drops nothing, and
    no token that absorbs adjacent whitespace.
    """
    from tokenizers.decoders import ByteLevel
    from tokenizers.normalizers import NFC

    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not isinstance(backend.decoder, ByteLevel) or not isinstance(backend.normalizer, NFC | None):
        return None
    if any(added.lstrip or added.rstrip for added in tokenizer.added_tokens_decoder.values()):
        return None
    return MAX_CHARS_PER_BYTE * max(len(token.encode()) for token in tokenizer.get_vocab())

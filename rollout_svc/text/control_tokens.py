"""Control tokens: only the chat template writes them. Text of environments, tools and tenants is encoded as plain text.

A tokenizer turns the text `<|im_end|>` into the token that ends a turn, from any author: a tool result could end its own message and
begin a system message. So texts from outside are marked before the template renders them, wherever a control token begins in them or
could form with adjacent template text. Control tokens left in the rendered text are the template's. Only they
are encoded as control tokens, by a copy of the tokenizer that spells them differently; everything else is plain. If nothing was marked,
the tokenizer itself encodes the rendered text, as `apply_chat_template` would.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pydantic import JsonValue

from common.messages import Opening

MARK = "\U0010fffc"
"""Breaks up a control token in a text from outside. A private-use character; if a text contains it, it is removed."""
FENCE = "\U0010fffd"
"""Surrounds a control token of the template in the copy's spelling."""
WORD = re.compile(r"\w*")
CONVERSATIONS = (("system", "user", "assistant", "tool", "user"), ("user", "assistant", "tool"), ("user", "assistant", "user"), ("user",))
"""Role sequences whose rendering shows which tokens a template writes around messages; some templates refuse some sequences."""


class ControlTokens:
    """Control tokens of one tokenizer: special tokens, and others that its template puts around messages, as DeepSeek's `<｜User｜>`."""

    def __init__(self, tokenizer: Any) -> None:  # of transformers, whose classes are loosely typed
        frame = _frame(tokenizer)
        added = tokenizer.added_tokens_decoder.values()
        self._spelled = sorted(
            {one.content for one in added if len(one.content) > 1 and (one.special or one.content in frame)}, key=_longest
        )
        spelled = "|".join(map(re.escape, self._spelled)) or r"(?!)"
        self._any = re.compile(spelled)
        self._starts = re.compile(rf"(?=(?:{spelled}))(.)", re.DOTALL)
        self._heads = tuple({one[:end] for one in self._spelled for end in range(1, len(one))})
        self._tails = tuple({one[start:] for one in self._spelled for start in range(1, len(one))})
        self._max_length = max(map(len, self._spelled), default=0)
        self._copy, self._ids = _copy(tokenizer, self._spelled)
        self._words = {} if self._copy is None else {self._copy.token_to_id(one): one for one in self._spelled}
        """Control tokens that are also plain words in the model's vocabulary, by id in the copy."""

    def spells(self, text: str) -> bool:
        """Whether `text` is exactly a control token."""
        return text in self._spelled

    def starts(self, text: str) -> bool:
        """Whether `text` begins with a control token."""
        return self._any.match(text) is not None

    def disarmed(self, value: JsonValue, *, names: bool = True) -> JsonValue:
        """`value` with control tokens in its texts, keys included, broken up by marks; unchanged if there are none.

        `names`: also mark a text that may be the middle of a control token, as `|im_end|` between `<` and `>`.
        """
        return _mapped(value, lambda text: self._disarmed(text, names=names))

    def encode(self, rendered: str) -> list[int]:
        """Token ids of a rendered text that contains marks. Raises: ValueError if the tokenizer has no copy."""
        if self._copy is None:
            raise ValueError("this model's tokenizer cannot distinguish the text of a control token from the token")
        fenced = self._any.sub(lambda found: f"{FENCE}{found[0]}{FENCE}", rendered.replace(FENCE, "")).replace(MARK, "")
        return list(self._own_ids(self._copy.encode(fenced, add_special_tokens=False).ids))

    def _own_ids(self, ids: Iterable[int]) -> Iterable[int]:
        """Map ids of the copy to the tokenizer's. A control token that is also a plain word is spelled in characters."""
        for token in ids:
            if token in self._words:
                yield from (one for char in self._words[token] for one in self._copy.encode(char, add_special_tokens=False).ids)
            else:
                yield self._ids.get(token, token)

    def _disarmed(self, text: str, *, names: bool) -> str:
        broken = self._starts.sub(rf"\1{MARK}", text.replace(MARK, "") if MARK in text else text)
        core = broken.strip()
        if core and self._touches(core, names=names):
            return broken.replace(core, f"{MARK}{core}{MARK}", 1)
        return broken

    def _touches(self, core: str, *, names: bool) -> bool:
        """Whether a text, stripped of whitespace, could form a control token with adjacent text."""
        if core.startswith(self._tails) or core.endswith(self._heads):
            return True
        is_name = names and len(core) < self._max_length and not WORD.fullmatch(core)
        return is_name and any(core in one for one in self._spelled)


def _mapped(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(one, change) for one in value]
    if isinstance(value, dict):
        return {change(key): _mapped(one, change) for key, one in value.items()}
    return value


def _longest(text: str) -> tuple[int, str]:
    return -len(text), text


def _frame(tokenizer: Any) -> str:
    """A conversation rendered with the first role sequence that the template accepts; empty if it refuses all."""
    for roles in CONVERSATIONS:
        try:
            return str(tokenizer.apply_chat_template([{"role": role, "content": "."} for role in roles], tokenize=False))
        except Exception:  # template expressions may raise any exception
            continue
    return ""


def openings_of(tokenizer: Any, ends: Sequence[str], controls: ControlTokens) -> list[Opening]:
    """Text that the template writes before a message of each role, if it begins with a control token. `ends`: end-of-turn texts."""
    found: dict[Any, str] = {}
    for roles in CONVERSATIONS:
        contents = [f"the {number}th message" for number in range(len(roles))]
        try:
            said = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
            rest = str(tokenizer.apply_chat_template(said, tokenize=False))
        except Exception:  # template expressions may raise any exception
            continue
        for role, content in zip(roles, contents, strict=True):
            before, _, rest = rest.partition(content)
            start = max((before.rfind(end) + len(end) for end in ends if end in before), default=0)
            found.setdefault(role, before[start:].strip().removeprefix(tokenizer.bos_token or "").strip())
    return [Opening(role=role, text=text) for role, text in found.items() if controls.starts(text)]


def _copy(tokenizer: Any, spelled: list[str]) -> tuple[Any, dict[int, int]]:
    """Copy of the tokenizer with fenced control tokens, and a map from its ids of added tokens to the tokenizer's.

    (None, {}) if the tokenizer does not use the library tokenizers.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None, {}
    from tokenizers import Tokenizer

    written = json.loads(backend.to_str())
    own: dict[str, int] = {}
    for added in written["added_tokens"]:
        if added["content"] in spelled:
            added["content"] = f"{FENCE}{added['content']}{FENCE}"
        own[added["content"]] = added["id"]
    # Without a post-processor: it may name special tokens, which are spelled differently here.
    copy: Any = Tokenizer.from_str(json.dumps({**written, "post_processor": None, "truncation": None, "padding": None}))
    return copy, {copy.token_to_id(content): id for content, id in own.items()}

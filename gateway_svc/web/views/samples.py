"""Attempts of a step: one conversation with tokens coloured by a figure, and its differences from another attempt."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import Literal

from common.messages import KeptAttempt, SamplesAnswer, TokenTexts
from gateway_svc.samples import Call, Token, joined, messages_of, tokens_of

By = Literal["logprob", "difference", "advantage"]
BYS: Mapping[By, str] = {"logprob": "log-probability", "difference": "sampler − trainer", "advantage": "advantage"}
LIKELY = (-0.1, -0.5, -1.0, -2.0, -4.0)
"""Log-probabilities that separate the colour levels 0 to 5."""
DIFFERENT = (0.01, 0.1, 1.0)
"""Absolute log-probability differences, in nats, that begin the levels 1 to 3."""
ADVANTAGES = (1e-9, 0.5, 1.5)
LEGENDS: Mapping[By, Sequence[tuple[str, str]]] = {
    "logprob": [
        ("l0", "0 to −0.1"), ("l1", "to −0.5"), ("l2", "to −1"), ("l3", "to −2"), ("l4", "to −4"), ("l5", "below −4"),
    ],
    "difference": [
        ("dn3", "to −1"), ("dn2", "to −0.1"), ("dn1", "to −0.01"), ("d0", "about 0"), ("dp1", "from 0.01"), ("dp2", "from 0.1"),
        ("dp3", "from 1"),
    ],
    "advantage": [
        ("an3", "to −1.5"), ("an2", "to −0.5"), ("an1", "below 0"), ("a0", "0"), ("ap1", "above 0"), ("ap2", "from 0.5"),
        ("ap3", "from 1.5"),
    ],
}  # fmt: skip
MAX_ROWS = 1000
"""Maximum rows of the table of tokens."""
MAX_ALIGNED = 1000
"""Maximum tokens to align, after the common prefix and suffix; longer rests count as entirely different."""


@dataclass(frozen=True)
class ShownToken:
    """One sampled token, or all tokens between two sampled ones."""

    text: str
    classes: str
    """CSS classes of all three colourings; the page selects one."""
    numbers: str
    """The token's figures as one text; empty if the token was not sampled."""


@dataclass(frozen=True)
class ShownMessage:
    role: str
    tokens: Sequence[ShownToken]
    calls: Sequence[Call]


@dataclass(frozen=True)
class Summary:
    """One attempt in one line."""

    index: int
    kept: KeptAttempt
    tokens: int
    sampled: int
    mean_logprob: float | None
    most_different: float | None
    """Largest absolute difference between the log-probabilities of sampler and trainer."""


@dataclass(frozen=True)
class Part:
    """A run of tokens common to both attempts or present in one of them."""

    kind: Literal["both", "first", "second"]
    text: str


@dataclass(frozen=True)
class SamplesPage:
    task: str
    steps: Sequence[int]
    """Steps with samples, latest first."""
    step: int | None
    left_out: int
    has_texts: bool
    attempts: Sequence[Summary]
    chosen: Summary | None
    messages: Sequence[ShownMessage]
    rows: Sequence[tuple[int, Token]]
    """(position, token) of sampled tokens, at most MAX_ROWS."""
    others: Sequence[Summary]
    """Other attempts of the chosen one's group."""
    other: Summary | None
    parts: Sequence[Part]
    """Comparison of the chosen attempt with `other`."""
    by: By

    @property
    def left_out_rows(self) -> int:
        return self.chosen.sampled - len(self.rows) if self.chosen else 0


def samples_page(answer: SamplesAnswer, texts: TokenTexts | None, attempt: int, other: int | None, by: By) -> SamplesPage:
    """Build the page. `attempt`, `other`: indices of attempts; if out of range, the first attempt and no other."""
    found = answer.samples
    kept = found.attempts if found else []
    tokens = tokens_of(kept, texts)
    summaries = [_summary(index, one, of_it) for index, (one, of_it) in enumerate(zip(kept, tokens, strict=True))]
    chosen = summaries[attempt if attempt < len(summaries) else 0] if summaries else None
    own = tokens[chosen.index] if chosen else []
    others = [one for one in summaries if chosen and one is not chosen and one.kept.group == chosen.kept.group]
    compared = next((one for one in others if one.index == other), None)
    return SamplesPage(
        task=answer.task,
        steps=answer.steps[::-1],
        step=found.version if found else None,
        left_out=found.left_out if found else 0,
        has_texts=texts is not None,
        attempts=summaries,
        chosen=chosen,
        messages=[
            ShownMessage(said.role, list(_shown(said.tokens, chosen.kept.advantage)), said.calls)
            for said in messages_of(own, texts.openings if texts else ())
        ]
        if chosen
        else [],
        rows=[(place, token) for place, token in enumerate(own) if token.is_sampled][:MAX_ROWS],
        others=others,
        other=compared,
        parts=differences(own, tokens[compared.index]) if compared else [],
        by=by,
    )


def differences(first: Sequence[Token], second: Sequence[Token]) -> list[Part]:
    """Runs of tokens that both attempts share, or only one has."""
    ids = [token.id for token in first], [token.id for token in second]
    same = _common(*ids)
    rest = ids[0][same:], ids[1][same:]
    tail = _common(rest[0][::-1], rest[1][::-1])
    ends = len(first) - tail, len(second) - tail
    middle = first[same : ends[0]], second[same : ends[1]]
    parts = [Part("both", _text(first[:same])), *_aligned(*middle), Part("both", _text(first[ends[0] :]))]
    return [part for part in parts if part.text]


def _aligned(first: Sequence[Token], second: Sequence[Token]) -> list[Part]:
    if max(len(first), len(second)) > MAX_ALIGNED:
        return [Part("first", _text(first)), Part("second", _text(second))]
    found = list[Part]()
    for kind, begin, end, other_begin, other_end in SequenceMatcher(
        a=[token.id for token in first], b=[token.id for token in second]
    ).get_opcodes():
        if kind == "equal":
            found.append(Part("both", _text(first[begin:end])))
        else:
            found += [Part("first", _text(first[begin:end])), Part("second", _text(second[other_begin:other_end]))]
    return found


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix."""
    differing = (place for place, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)
    return next(differing, min(len(first), len(second)))


def _text(tokens: Sequence[Token]) -> str:
    """Text of tokens; their ids if they have no text."""
    text = joined(tokens)
    return text if text is not None else "".join(f"{token.id} " for token in tokens)


def _summary(index: int, kept: KeptAttempt, tokens: Sequence[Token]) -> Summary:
    logprobs = [token.sampler for token in tokens if token.sampler is not None]
    apart = [abs(token.difference) for token in tokens if token.difference is not None]
    return Summary(
        index=index,
        kept=kept,
        tokens=len(tokens),
        sampled=kept.tokens.sampled_tokens,
        mean_logprob=sum(logprobs) / len(logprobs) if logprobs else None,
        most_different=max(apart, default=None),
    )


def _shown(tokens: Sequence[Token], advantage: float) -> Iterator[ShownToken]:
    """Yield each sampled token, and each run of other tokens as one."""
    for is_sampled, run in groupby(tokens, key=lambda token: token.is_sampled):
        if is_sampled:
            yield from (_coloured(token, advantage) for token in run)
        else:
            yield ShownToken(_text(list(run)), "t", "")


def _coloured(token: Token, advantage: float) -> ShownToken:
    level = sum(token.sampler < bound for bound in LIKELY) if token.sampler is not None else 0
    classes = f"t s l{level} d{_signed(token.difference, DIFFERENT)} a{_signed(advantage, ADVANTAGES)}"
    numbers = (
        f"id {token.id}, sampler {_number(token.sampler)}, trainer {_number(token.trainer)}, "
        f"difference {_number(token.difference)}, advantage {_number(advantage)}"
    )
    return ShownToken(_text([token]).replace("\n", "⏎\n"), classes, numbers)


def _signed(value: float | None, bounds: Sequence[float]) -> str:
    level = sum(abs(value) >= bound for bound in bounds) if value is not None else 0
    return "0" if not level or value is None else f"{'p' if value > 0 else 'n'}{level}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"

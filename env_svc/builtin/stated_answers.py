"""Extraction of the stated final answer from a reply to a math problem, and its notations. Pure: the library compares.

An answer is stated by `\\boxed{…}`, by `#### …`, by `<answer>…</answer>`, or by "the answer is …", "Answer: …" and the like. The last
statement counts, not an earlier "answer", a dollar sign or a percentage in the working.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

STATEMENT = re.compile(r"####|<answer>|\\f?boxed\s*\{|(?<!</)\banswers?\b[^\n.]{0,60}?(?:\b(?:is|are|was|be)\b|[:=])", re.IGNORECASE)
MAX_STATEMENTS = 8
"""Maximum statements that are tried, beginning with the last one. A statement without an expression, as in "the answer is unclear", is
skipped."""
MAX_STATED_CHARS = 300
"""Maximum length of a stated answer. The library's time grows with the square of the length."""
MAX_UNSTATED_CHARS = 1000
"""Length of a reply's end that is searched for its last number, if no answer is stated."""

ANSWER_END = re.compile("</answer>", re.IGNORECASE)
HEADING = re.compile(r"####[#\s]*[A-Za-z]{2,}[^\n]*\n\s*\S")
"""A heading of Markdown with text below it, which looks like `#### …` and states no answer."""
SENTENCE_END = re.compile(r"\n|[.!?](?=\s|$)")
DISPLAYED = re.compile(r"\\[\[\]]")
"""Marks of a displayed formula."""
JOINED = re.compile(r"[\s$]*(?:,|and|or|,\s*and|,\s*or)?[\s$]*")
"""Text between two boxes that state one answer together."""
WORD = re.compile(r"(?<!\\)\b[A-Za-z]{2,}")
COMMAND = re.compile(r"\\(?:text|mathrm|mbox|begin|end)\s*\{[^{}]*\}|\\[A-Za-z]+")
TEXT = re.compile(r"\\(?:text|mathrm|mbox)\s*\{([^{}]*)\}")
MARKUP = " \t*_`"
LEAD = "answer is "
"""Prefix added to a text that is searched for an answer. It makes the library take the first expression instead of the last."""


@dataclass(frozen=True)
class Stated:
    """One reading of a stated answer."""

    text: str
    is_whole: bool
    """True: the text is only an answer; False: an answer has to be found in the text."""


def stated_answers(reply: str) -> list[list[Stated]]:
    """Each statement's readings, best first; the last statement comes first.

    After the statements follows the end of the reply, in case that they give no answer. Time is linear in the reply's length.
    """
    matches = list(STATEMENT.finditer(reply))[-MAX_STATEMENTS:]
    ends = [*(match.start() for match in matches[1:]), len(reply)]
    found = [list(_ways(reply, match, end)) for match, end in zip(matches, ends, strict=False)]
    if len(matches) > 1:
        found = _with_joined_boxes(reply, matches, found)
    return [*reversed(found), [Stated(reply[-MAX_UNSTATED_CHARS:].replace("`", " "), is_whole=False)]]


def _ways(reply: str, match: "re.Match[str]", end: int) -> Iterator[Stated]:
    if "boxed" in match[0]:
        content = _braced(reply, match.end())
        if content is None and len(reply) - match.end() < MAX_STATED_CHARS:  # cut inside the box
            yield Stated(reply[match.end() :].strip("$" + MARKUP), is_whole=True)
        elif content is not None:
            yield Stated(content + _percent_after(reply, match.end() + len(content) + 1), is_whole=True)
        return
    if HEADING.match(reply, match.start(), min(len(reply), match.start() + MAX_STATED_CHARS)):
        return
    if match[0].casefold() == "<answer>":
        end = closed.start() if (closed := ANSWER_END.search(reply, match.end())) else len(reply)
    rest = reply[match.end() : min(end, match.end() + MAX_STATED_CHARS)].lstrip("\n:=" + MARKUP)
    line = rest.partition("\n")[0] if match[0] == "####" else rest[: found.start()] if (found := SENTENCE_END.search(rest)) else rest
    if is_expression(line):
        yield Stated(DISPLAYED.sub("", line).strip(MARKUP).rstrip(".").strip("$" + MARKUP), is_whole=True)
    yield Stated(LEAD + line, is_whole=False)
    yield Stated(LEAD + rest, is_whole=False)


def _with_joined_boxes(reply: str, matches: "list[re.Match[str]]", found: list[list[Stated]]) -> list[list[Stated]]:
    """`found`, in which a box that follows another, as in `\\boxed{1}` and `\\boxed{2}`, states the answers of both."""
    joined = [found[0]]
    for before, match, ways in zip(matches, matches[1:], found[1:], strict=False):
        if "boxed" in before[0] and "boxed" in match[0] and joined[-1] and ways:
            content = _braced(reply, before.end()) or ""
            if JOINED.fullmatch(reply, before.end() + len(content) + 1, match.start()):
                ways = [Stated(f"{joined[-1][0].text}, {ways[0].text}", is_whole=True)]
        joined.append(ways)
    return joined


def _braced(text: str, start: int) -> str | None:
    """Text inside braces that open just before `start`; None if they are not closed within MAX_STATED_CHARS."""
    depth = 1
    for position in range(start, min(len(text), start + MAX_STATED_CHARS)):
        if text[position] == "\\":
            continue
        escaped = text[position - 1] == "\\"
        depth += 0 if escaped else {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return None


def _percent_after(text: str, position: int) -> str:
    return "\\%" if re.match(r"\s*\\?%", text[position : position + 10]) else ""


def is_expression(text: str) -> bool:
    """Whether a text has no words except LaTeX's, so that it can be parsed as one expression."""
    return bool(text.strip("$." + MARKUP)) and not WORD.search(COMMAND.sub(" ", _as_latex(text))) and text.count("$") <= 2


def words(text: str) -> str:
    """An answer in words, normalised for comparison: without case, mark-up and lead."""
    return TEXT.sub(r"\1", text.removeprefix(LEAD)).strip("$.!" + MARKUP).casefold()


# ------------------------------------------------------------------------------------- notations that the library misreads

REPEATING = re.compile(r"(?<![\d.])(?P<whole>\d*)\.(?P<fixed>\d*)\\overline\s*\{?\s*(?P<repeated>\d+)\s*\}?")
ENDLESS = re.compile(r"(?<![\d.])(?P<whole>\d{0,12})\.(?P<fixed>\d{0,12}?)(?P<repeated>\d{1,6}?)(?P=repeated)+(?:\.{3}|…|\\[lc]?dots)")
"""A decimal that ends with an ellipsis. The shortest block of digits that is written at least twice before it counts as repeating."""
MINUS = str.maketrans("−–", "--")
CURRENCY = re.compile(r"(?<![\w)}])(?P<sign>-?)[ ]?\\?[$€£¥₹](?P<inner>-?)(?=\d)")
SPACED_THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:(?:\\[,;: ]|\{,\}| )\d{3})+(?![\d,])")
MIXED = re.compile(r"(?<![\d/.^)}])(?P<whole>\d+)\s+(?P<over>\d+)\s*/\s*(?P<under>\d+)(?![\d.])")
SCIENTIFIC = re.compile(r"(?<![\w.])(?P<digits>\d+(?:\.\d+)?)[eE](?P<power>[+-]?\d+)(?!\w)")
PLAIN = re.compile(r"(?<![\\A-Za-z])(pi|sqrt|sin|cos|tan|log|ln)(?![A-Za-z])")
"""Names that a reply may write without LaTeX's backslash."""
EXPONENTIAL = re.compile(r"(?<![\\A-Za-z])exp\((?P<power>[^()]*)\)")
ROOT = re.compile(r"\\sqrt\s*\((?P<of>[^()]*)\)")
ROMAN = re.compile(r"\\(?:mathrm|mathit|rm)\s*\{\s*(?P<letter>[A-Za-z])\s*\}")


MAX_DEPTH = 8
"""Maximum depth of nested brackets: the library's parser takes seconds for twenty."""
MAX_BARS = 8
"""Maximum number of `|`: the parser tries which of them are pairs."""
HUGE = re.compile(r"(?:\^|\*\*)\s*\{?\s*-?\s*\d{5}|\d{5}\s*\}?\s*!|\\(?:[dt]?binom|sum|prod)(?![A-Za-z])[^\n]{0,40}?\d{5}")
"""A power, factorial, binomial, sum or product with a number of five digits or more: the library would compute all digits of its value."""
TOWER = re.compile(r"(?:(?:\^|\*\*)[{(\s]*[\w.]+[\s]*){3}")
"""Powers of powers of powers."""


def is_computable(expression: str) -> bool:
    """Whether the library can parse and compare an expression quickly."""
    depth = deepest = 0
    for character in expression:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    return deepest <= MAX_DEPTH and expression.count("|") <= MAX_BARS and not HUGE.search(expression) and not TOWER.search(expression)


def plain(text: str) -> str:
    """The text, with mixed numbers, endless decimals, minus signs and prices rewritten in notations that the library recognizes."""
    text = ENDLESS.sub(_endless_decimal, text.translate(MINUS))
    text = CURRENCY.sub(r" \g<sign>\g<inner>", text) if "-" in text or not text.count("$") else text
    return MIXED.sub(_improper_fraction, text)


def normalised(expression: str) -> str:
    """The answer as LaTeX, rewritten in notations that the library reads correctly."""
    expression = CURRENCY.sub(r"\g<sign>\g<inner>", expression.translate(MINUS))
    expression = ENDLESS.sub(_endless_decimal, REPEATING.sub(_repeating_decimal, _as_latex(expression)))
    expression = SPACED_THOUSANDS.sub(lambda match: re.sub(r"\D", "", match[0]), expression)
    expression = SCIENTIFIC.sub(r"\g<digits> \\cdot 10^{\g<power>}", expression)
    expression = MIXED.sub(r"\g<whole>\\frac{\g<over>}{\g<under>}", expression)
    expression = ROOT.sub(r"\\sqrt{\g<of>}", expression)
    return ROMAN.sub(r"\g<letter>", expression).replace("\\varnothing", "\\emptyset")


def _as_latex(text: str) -> str:
    return PLAIN.sub(r"\\\1", EXPONENTIAL.sub(r"e^{\g<power>}", text))


def _repeating_decimal(match: "re.Match[str]") -> str:
    """0.1\\overline{6} as a fraction."""
    value = _repeated(match)
    return f"\\frac{{{value.numerator}}}{{{value.denominator}}}"


def _endless_decimal(match: "re.Match[str]") -> str:
    """0.1666... as 1/6."""
    return str(_repeated(match))


def _improper_fraction(match: "re.Match[str]") -> str:
    """11 5/6 as 71/6; others, such as 4 10/3, unchanged."""
    over, under = int(match["over"]), int(match["under"])
    return str(int(match["whole"]) + Fraction(over, under)) if 0 < over < under else match[0]


def _repeated(match: "re.Match[str]") -> Fraction:
    whole, fixed, repeated = match["whole"] or "0", match["fixed"], match["repeated"]
    shift = 10 ** len(fixed)
    return Fraction(int(whole + fixed), shift) + Fraction(int(repeated), shift * (10 ** len(repeated) - 1))

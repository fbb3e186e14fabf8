"""Texts and numbers on a page: hostile text made visible, figures formatted for people.

Names, reasons and model output are untrusted: autoescape neutralizes markup, this module characters without a glyph.
"""

import unicodedata
from datetime import UTC, datetime

MAX_CHARS = 20_000
"""Maximum characters of one text on a page."""
KEPT = "\n\t"
NONE = "–"
MAX_SHORT = 22
"""Maximum characters of a shortened id; task names with their 12 random digits are mostly shorter."""


def visible(value: object) -> str:
    """Text with control, bidirectional and invisible characters replaced by their code point, such as `⟨U+202E⟩`; cut at MAX_CHARS."""
    text = str(value)
    cut = text[:MAX_CHARS]
    shown = cut if cut.isascii() and cut.isprintable() else "".join(map(_shown, cut))
    return shown if len(text) <= MAX_CHARS else f"{shown}… ({len(text)} characters)"


def one_line(value: object) -> str:
    """As `visible`, with line breaks and tabs replaced too."""
    return visible(str(value).replace("\n", "⏎").replace("\t", " "))


def escaped(text: str) -> str:
    """Code with invisible characters escaped in a form valid in JSON and Python, so that copied text equals displayed text."""
    return "".join(_escape(one) if one not in KEPT and _is_invisible(one) else one for one in text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _shown(character: str) -> str:
    if character in KEPT or not _is_invisible(character):
        return character
    return f"⟨U+{ord(character):04X}⟩"


def _is_invisible(character: str) -> bool:
    """Whether a character is a control, format (including bidirectional), surrogate, private-use or line separator character, a space
    other than U+0020, or a filler without ink."""
    category = unicodedata.category(character)
    is_space = category == "Zs" and character != " "
    return category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or is_space or character in "\u115f\u1160\u3164\uffa0\u2800\u034f"


def number(value: float | None, digits: int = 3) -> str:
    """Number with `digits` decimals, or `digits` significant digits if it is too small for that."""
    if value is None:
        return NONE
    if value != 0 and abs(value) < 10**-digits:
        return f"{value:.{digits}g}"
    return f"{value:,.{digits}f}"


def significant(value: float | None, digits: int = 5) -> str:
    """Number rounded to `digits` significant digits, machine-readable; all digits before the point are kept."""
    if value is None:
        return NONE
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def whole(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def size(value: int | None) -> str:
    """Size in bytes, in the largest unit that gives at least one."""
    if value is None:
        return NONE
    amount, unit = float(value), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.2f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def moment(unix_s: float | None) -> str:
    """Time in UTC."""
    return NONE if unix_s is None else datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")


def short(text: str) -> str:
    """An id shortened in the middle, as ids of the same origin begin alike."""
    kept = MAX_SHORT - 1
    return text if len(text) <= MAX_SHORT else f"{text[: kept - kept // 2]}…{text[-(kept // 2) :]}"


def iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")

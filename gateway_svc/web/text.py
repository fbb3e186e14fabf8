"""Texts and numbers on a page: hostile text made visible, figures as people read them.

Names, reasons and model output are anybody's; autoescape takes their markup, this takes what has no glyph.
"""

import unicodedata
from datetime import UTC, datetime

MAX_CHARS = 20_000
"""Maximum characters of one text on a page."""
KEPT = "\n\t"
NONE = "–"
MAX_SHORT = 22
"""Maximum characters of an id that is shown shortened; names of tasks with their 12 random digits are mostly shorter."""


def visible(value: object) -> str:
    """Text whose control, bidirectional and invisible characters are shown by their code point, such as `⟨U+202E⟩`; cut at MAX_CHARS."""
    text = str(value)
    cut = text[:MAX_CHARS]
    shown = cut if cut.isascii() and cut.isprintable() else "".join(map(_shown, cut))
    return shown if len(text) <= MAX_CHARS else f"{shown}… ({len(text)} characters)"


def one_line(value: object) -> str:
    """`visible`, line breaks and tabs included."""
    return visible(str(value).replace("\n", "⏎").replace("\t", " "))


def escaped(text: str) -> str:
    """Code whose invisible characters are escapes of JSON and of Python, so that what is copied is what is seen."""
    return "".join(_escape(one) if one not in KEPT and _is_invisible(one) else one for one in text)


def _escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


def _shown(character: str) -> str:
    if character in KEPT or not _is_invisible(character):
        return character
    return f"⟨U+{ord(character):04X}⟩"


def _is_invisible(character: str) -> bool:
    """Controls, format characters (bidirectional ones among them), surrogates, private ones, separators of lines, and fillers that
    have the width of a letter and no ink."""
    category = unicodedata.category(character)
    is_space = category == "Zs" and character != " "
    return category in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp") or is_space or character in "\u115f\u1160\u3164\uffa0\u2800\u034f"


def number(value: float | None, digits: int = 3) -> str:
    """With `digits` after the point, or as many significant ones where the number is smaller than that shows."""
    if value is None:
        return NONE
    if value != 0 and abs(value) < 10**-digits:
        return f"{value:.{digits}g}"
    return f"{value:,.{digits}f}"


def significant(value: float | None, digits: int = 5) -> str:
    """As a program reads it, rounded to so many significant digits; those before the point are all kept."""
    if value is None:
        return NONE
    return f"{value:.0f}" if abs(value) >= 10**digits else f"{value:.{digits}g}"


def whole(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def size(value: int | None) -> str:
    """Bytes, in the largest unit of which there is at least one."""
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
    """An id for a place where many stand: the middle of a long one is left out, as ids of one maker begin alike."""
    kept = MAX_SHORT - 1
    return text if len(text) <= MAX_SHORT else f"{text[: kept - kept // 2]}…{text[-(kept // 2) :]}"


def iso(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds")

"""Hostile text made visible. Names, reasons and model output are anybody's; autoescape takes their markup, this takes what has no glyph."""

import unicodedata

MAX_CHARS = 20_000
"""Maximum characters of one text on a page."""
KEPT = "\n\t"


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

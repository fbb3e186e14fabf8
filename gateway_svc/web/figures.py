"""Numbers, times and sizes as people read them."""

from datetime import UTC, datetime

NONE = "–"
MAX_SHORT = 22
"""Maximum characters of an id that is shown shortened; names of tasks with their 12 random digits are mostly shorter."""


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

"""Jinja2 with autoescape. `finalize` also applies `visible` to every value that a template prints."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gateway_svc.web import text
from gateway_svc.web.text import one_line, visible
from gateway_svc.web.views import charts

TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


def _printed(value: object) -> object:
    """Value to print: Markup comes from our templates; all else is text and made visible."""
    return value if isinstance(value, Markup) else visible(value)


def _with_code(text: str) -> Markup:
    """Convert text of our own documentation to HTML, with parts between backticks as code."""
    parts = [escape(visible(part)) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(part) if index % 2 else part for index, part in enumerate(parts))


@cache
def _environment() -> Environment:
    found = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_printed,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "number": text.number,
        "significant": text.significant,
        "whole": text.whole,
        "size": text.size,
        "duration": text.duration,
        "moment": text.moment,
        "short": text.short,
        "iso": text.iso,
        "one_line": one_line,
        "with_code": _with_code,
    }
    found.globals |= {"asset": address_of, "spark_width": charts.WIDTH, "spark_height": charts.HEIGHT}  # type: ignore[arg-type]
    return found


def render(name: str, **shown: object) -> str:
    """Render a page."""
    return _environment().get_template(f"{name}.html").render(**shown)


FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Asset:
    content: bytes
    media_type: str
    digest: str


@cache
def assets() -> dict[str, Asset]:
    """Every file that browsers may load, by name."""
    files = [path for folder in ("static", "vendor") for path in sorted((FOLDER / folder).iterdir()) if path.suffix in TYPES]
    return {path.name: _read(path) for path in files}


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    return Asset(content, TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:16])


def address_of(name: str) -> str:
    """Path of an asset below the dashboard's; it changes with the content. Raises: KeyError."""
    return f"static/{assets()[name].digest}/{name}"

"""Jinja2 with autoescape. Every text from elsewhere passes `visible` too: `finalize` applies it to whatever a template prints."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from gateway_svc.web import figures, sparkline
from gateway_svc.web.assets import address_of
from gateway_svc.web.text import one_line, visible


def _printed(value: object) -> object:
    """Markup is the templates' own; everything else is text."""
    return value if isinstance(value, Markup) else visible(value)


def _with_code(text: str) -> Markup:
    """Text of our own documentation, its parts between backticks as code."""
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
        "number": figures.number,
        "significant": figures.significant,
        "whole": figures.whole,
        "size": figures.size,
        "duration": figures.duration,
        "moment": figures.moment,
        "short": figures.short,
        "iso": figures.iso,
        "one_line": one_line,
        "with_code": _with_code,
    }
    found.globals |= {"asset": address_of, "spark_width": sparkline.WIDTH, "spark_height": sparkline.HEIGHT}  # type: ignore[arg-type]
    return found


def render(name: str, **shown: object) -> str:
    """A page."""
    return _environment().get_template(f"{name}.html").render(**shown)

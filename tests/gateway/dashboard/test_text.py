"""Hostile texts: what a page shows of them."""

import re
import unicodedata
from pathlib import Path

import pytest

import gateway_svc.web
from gateway_svc.problems import Problem
from gateway_svc.web.templates import render
from gateway_svc.web.text import MAX_CHARS, one_line, visible
from tests.gateway.dashboard.hostile import INVISIBLE, LONG, MARKUP, TEXTS

BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize("text", INVISIBLE)
def test_invisible_character_is_shown_by_its_code_point(text: str) -> None:
    shown = visible(text)

    hidden = [character for character in text if f"U+{ord(character):04X}" in shown]
    assert len(hidden) >= 1
    assert not set(shown) & set(hidden)


def test_all_control_and_bidirectional_characters_are_shown() -> None:
    controls = [
        chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp") and chr(code) not in "\n\t"
    ]

    assert set(BIDIRECTIONAL) < set(controls)
    assert not set(visible("".join(controls[:1000]))) & set(controls)
    assert "\n" not in one_line("a\nb\tc")


@pytest.mark.parametrize("text", ["letters", "Grüße, 你好, שלום, 🙂", "two\nlines\tand a tab", "e\u0301"])
def test_usual_text_stays(text: str) -> None:
    assert visible(text) == text


def test_long_text_is_cut() -> None:
    assert len(visible(LONG)) < MAX_CHARS + 40
    assert str(len(LONG)) in visible(LONG)


@pytest.mark.parametrize("text", [*MARKUP, LONG])
def test_markup_is_text_in_a_page(text: str) -> None:
    """Every page comes out of the same environment: autoescape, and the filter for what a template prints."""
    harmless = render("problem", problem=Problem(400, "x", "x"), root="/ui", theme="")
    page = render("problem", problem=Problem(400, text, text), root="/ui", theme="")

    assert page.count("<") == harmless.count("<")
    assert page.count('"') == harmless.count('"')


def test_templates_mark_no_text_as_safe() -> None:
    templates = {path.name: path.read_text() for path in (Path(gateway_svc.web.__file__).parent / "templates").glob("*.html")}

    assert len(templates) > 10
    assert not [
        name for name, text in templates.items() if re.search(r"\|\s*(safe|e|escape)\b|autoescape|\bstyle=|\bon\w+=|<script>", text)
    ]


def test_there_are_sixty_texts() -> None:
    assert len(set(TEXTS)) >= 60

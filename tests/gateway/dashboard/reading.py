"""Texts of pages, as they are read."""

import re
from html import unescape


def texts_of(page: str) -> str:
    """What is read on a page."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def cells(page: str, table: str) -> list[list[str]]:
    """Texts of a table's body."""
    body = page.partition(f'<table id="{table}">')[2].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr[^>]*>(.*?)</tr>", body, re.DOTALL)
    return [[texts_of(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)] for row in rows]

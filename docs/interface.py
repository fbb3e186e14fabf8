"""The HTTP interface: its OpenAPI document, the table of routes in `http.md`, and that of harmless fields in `openai.md`."""

import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

from gateway_svc.http.application import all_families, described
from gateway_svc.openai.parsing import HARMLESS

FILE = "schemas/openapi.json"
OPENAI = ("files", "fine-tuning", "inference")
"""Tags of routes that `openai.md` describes."""
BEGIN, END = "<!-- routes -->", "<!-- end of routes -->"


@cache
def _openapi() -> dict[str, Any]:
    return described(all_families()).openapi()


def document() -> str:
    return json.dumps(_openapi(), indent=2) + "\n"


def page(text: str) -> str:
    """The page with its table of routes as the routes are now."""
    rows = ["| route | what it does |", "|---|---|", *_rows(_openapi())]
    return _between(text, BEGIN, END, rows)


def openai_page(text: str) -> str:
    """The page with its table of harmless fields as they are now."""
    rows = ["| field | permitted | why it cannot change an answer |", "|---|---|---|"]
    rows += [f"| `{name}` | {one.values} | {one.reason} |" for name, one in HARMLESS.items()]
    return _between(text, "<!-- harmless -->", "<!-- end of harmless -->", rows)


def _between(text: str, begin: str, end: str, rows: list[str]) -> str:
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(end)
    return "\n".join([before + begin, "", *rows, "", end + after])


def _rows(found: dict[str, Any]) -> Iterator[str]:
    """A row for each route; routes by verb have one."""
    by_route = {re.sub(r"^/v1/(ask|jobs)/.*", r"/v1/\1/{verb}", path): operations for path, operations in found["paths"].items()}
    for path, operations in by_route.items():
        for method, operation in operations.items():
            if operation["tags"][0] in OPENAI:
                continue
            summary = " ".join(operation.get("description", operation["summary"]).split("\n\n")[0].split())
            yield f"| `{method.upper()} {path}` | {summary} |"

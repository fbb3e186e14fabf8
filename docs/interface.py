"""The HTTP interface: its OpenAPI document, and the table of routes in `http.md`."""

import json
from collections.abc import Iterator
from typing import Any

from gateway_svc.http.application import all_families, described

FILE = "schemas/openapi.json"
BEGIN, END = "<!-- routes -->", "<!-- end of routes -->"


def document() -> str:
    return json.dumps(described(all_families()).openapi(), indent=2) + "\n"


def page(text: str) -> str:
    """The page with its table of routes as the routes are now."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = ["| route | what it does | answers |", "|---|---|---|", *_rows(described(all_families()).openapi())]
    return "\n".join([before + BEGIN, "", *rows, "", END + after])


def _rows(found: dict[str, Any]) -> Iterator[str]:
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            summary = " ".join(operation.get("description", operation["summary"]).split("\n\n")[0].split())
            yield f"| `{method.upper()} {path}` | {summary} | {', '.join(sorted(operation['responses']))} |"

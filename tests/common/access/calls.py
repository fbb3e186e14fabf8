"""What the services' code does with the bus, read from its syntax trees."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from common.access.rows import Use
from tests.support.paths import ROOT

SERVICE_OF_PACKAGE = {f"{name}_svc": name for name in ("scheduler", "env", "rollout", "trainer", "gateway")}
PROGRAMS = {"scheduler_svc/doctor", "trainer_svc/replay"}
"""Folders whose code runs with the operator's key as well, or instead."""
STREAM_CALLS = {
    "read": Use.READ,
    "last": Use.READ,
    "stored": Use.READ,
    "follow": Use.FOLLOW,
    "subjects": Use.INSPECT,
    "backlog": Use.INSPECT,
    "queue": Use.INSPECT,
    "purge": Use.PURGE,
    "erase": Use.PURGE,
    "erase_one": Use.PURGE,
    "begin_block": Use.PURGE,
    "acknowledged": Use.INSPECT,
    "recreate": Use.RECREATE,
    "differences": Use.INSPECT,
    "full": Use.INSPECT,
}
BUCKET_CALLS = {
    "get": Use.READ,
    "find": Use.READ,
    "values": Use.FOLLOW,
    "watch": Use.FOLLOW,
    "put": Use.PUBLISH,
    "replace": Use.PUBLISH,
    "delete": Use.PUBLISH,
    "release": Use.PUBLISH,
    "erase": Use.PURGE,
    "remove": Use.PURGE,
    "filled_share": Use.INSPECT,
    "keys": Use.INSPECT,
}
BLOB_CALLS = {
    "fetch": Use.READ,
    "fetch_folder": Use.READ,
    "fetch_file": Use.READ,
    "put": Use.PUBLISH,
    "put_folder": Use.PUBLISH,
    "delete": Use.PURGE,
    "forget_deleted": Use.PURGE,
    "listed": Use.FOLLOW,
    "names": Use.FOLLOW,
    "usage": Use.INSPECT,
}


@dataclass(frozen=True)
class Call:
    """One call of the bus. `what`: name of its constant or function in `common/streams/`; empty where it is a variable."""

    service: str
    place: str
    kind: str
    method: str
    what: str


def calls() -> Iterator[Call]:
    for package, service in SERVICE_OF_PACKAGE.items():
        for path in sorted((ROOT / package).rglob("*.py")):
            place = str(path.relative_to(ROOT))
            who = "operator" if any(place.startswith(folder) for folder in PROGRAMS) else service
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and (kind := _kind(node.func)):
                    yield Call(who, f"{place}:{node.lineno}", kind, node.func.attr, _name(node.args[0]) if node.args else "")


def _kind(called: ast.Attribute) -> str:
    on = ast.unparse(called.value)
    if on.endswith(("bus.streams", "bus.declarations")):
        return "stream"
    if on.endswith("bus.kv"):
        return "bucket"
    if on.startswith("Blobs(") or (on in ("self._blobs", "blobs") and called.attr != "items"):  # a mapping has that name too
        return "blob"
    if on.endswith(("bus", "_bus")) and called.attr in ("consume", "consume_batches"):
        return "consume"
    return ""


def _name(argument: ast.expr) -> str:
    """Last part of `streams.NAME` or `NAME`, in capitals, or of a called function."""
    if isinstance(argument, ast.Call):
        argument = argument.func
    name = ast.unparse(argument).rpartition(".")[2]
    return name if name.isidentifier() else ""

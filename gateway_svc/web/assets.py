"""Scripts and styles, named by their content, so that browsers keep each for as long as they like."""

import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
TYPES = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}


@dataclass(frozen=True)
class Asset:
    content: bytes
    media_type: str
    digest: str


@cache
def assets() -> dict[str, Asset]:
    """Every file that a browser may load, by name."""
    files = [path for folder in ("static", "vendor") for path in sorted((FOLDER / folder).iterdir()) if path.suffix in TYPES]
    return {path.name: _read(path) for path in files}


def _read(path: Path) -> Asset:
    content = path.read_bytes()
    return Asset(content, TYPES[path.suffix], hashlib.sha256(content).hexdigest()[:16])


def address_of(name: str) -> str:
    """Its path below the dashboard's; changes with its content. Raises: KeyError."""
    return f"static/{assets()[name].digest}/{name}"

"""Scripts and styles that the package brings."""

import gzip
import shutil
import tomllib
from pathlib import Path

import pytest

from gateway_svc.web import fetch_vendor
from gateway_svc.web.templates import address_of, assets
from tests.support.paths import ROOT

WEB = Path(fetch_vendor.__file__).parent
MAX_BYTES = 250_000


def test_libraries_are_those_of_the_list() -> None:
    assert fetch_vendor.changed_files() == []
    assert {package.name: package.version for package in fetch_vendor.vendored().packages} == {"htmx.org": "4.0.1", "uplot": "1.6.32"}
    assert all(any(name.endswith("LICENSE") for name in package.files) for package in fetch_vendor.vendored().packages)


def test_changed_byte_and_unknown_file_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = shutil.copytree(fetch_vendor.VENDOR, tmp_path / "vendor")
    monkeypatch.setattr(fetch_vendor, "VENDOR", vendor)
    script = vendor / "htmx.min.js"
    content = bytearray(script.read_bytes())
    content[1000] ^= 1
    script.write_bytes(content)
    (vendor / "more.js").write_text("")
    (vendor / "uPlot.LICENSE").unlink()

    assert fetch_vendor.changed_files() == ["htmx.min.js", "more.js", "uPlot.LICENSE"]


def test_scripts_and_styles_are_small() -> None:
    sizes = {name: len(gzip.compress(asset.content)) for name, asset in assets().items()}

    assert {
        "htmx.min.js",
        "hx-sse.min.js",
        "uPlot.iife.min.js",
        "dashboard.css",
        "charts.js",
        "timeline.js",
        "samples.js",
        "live.js",
    } <= set(sizes)
    assert sum(sizes.values()) <= MAX_BYTES, sizes


def test_address_changes_with_content() -> None:
    name = "dashboard.css"
    assert address_of(name) == f"static/{assets()[name].digest}/{name}"


def test_wheel_carries_the_files_of_the_pages() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["gateway_svc.web"]
    carried = {path for pattern in data for path in WEB.glob(pattern)}
    needed = {path for folder in ("templates", "static", "vendor") for path in (WEB / folder).iterdir()}

    assert needed and needed <= carried

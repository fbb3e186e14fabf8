"""Installed packages are pinned and hashed, and match the handwritten requirements: `make requirements` was run after the last change."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.paths import ROOT

FOLDER = ROOT / "requirements"
LISTS = sorted(FOLDER.rglob("*.txt"))
WITH_CLOSURE = ("gpu", "bench-trl")
"""Lists that name more than was written by hand."""
PIN = re.compile(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})*)$", re.MULTILINE)


def written(path: Path) -> dict[str, str]:
    """Name → version, of one file written by hand, with those that it includes."""
    found: dict[str, str] = {}
    for line in path.read_text().splitlines():
        if line.startswith("-r "):
            found |= written(path.parent / line.removeprefix("-r "))
        elif line and not line.startswith("#"):
            requirement = Requirement(line)
            found[canonicalize_name(requirement.name)] = str(requirement.specifier).removeprefix("==")
    return found


def locked(path: Path) -> dict[str, str]:
    return {canonicalize_name(name): version for name, version, _ in PIN.findall(path.read_text())}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_every_line_is_a_pin_with_hashes(path: Path) -> None:
    rest = PIN.sub(lambda found: "" if found[3] else found[0], path.read_text())
    assert rest.strip() == ""
    assert "://" not in path.read_text()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_list_is_what_was_written_by_hand(path: Path) -> None:
    by_hand, found = written(path.with_suffix(".in")), locked(path)
    if path.stem == "bench-trl":
        del by_hand["torch"]  # installed apart
    assert by_hand.items() <= found.items()
    assert path.stem in WITH_CLOSURE or by_hand == found


@pytest.mark.parametrize("part", ["scheduler", "env", "gateway", "trainer", "rollout", "trainer-gpu", "rollout-gpu"])
def test_image_has_what_its_service_asks_for_at_the_pins(part: str) -> None:
    found = locked(FOLDER / "images" / f"{part}.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for line in [*project["dependencies"], *project["optional-dependencies"][part.removesuffix("-gpu")]]:
        requirement = Requirement(line)
        name = canonicalize_name(requirement.name)
        if name == "torch" and not part.endswith("-gpu"):
            continue  # installed apart
        assert requirement.specifier.contains(found[name]), line
    pins = written(FOLDER / "cpu.in")
    assert {name: version for name, version in found.items() if name in pins} == {name: pins[name] for name in found if name in pins}


def test_extra_for_any_folder_has_vllms_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    first, *pins = project["optional-dependencies"]["all-cpu"]
    assert first.startswith("marlaas[")
    assert pins == [line for line in (FOLDER / "vllm.in").read_text().splitlines() if not line.startswith("#")]

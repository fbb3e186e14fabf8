"""Packages and modules stay small enough to be guessed: at most 14 modules a package, 350 lines a module (not a revision of the schema)."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.support.paths import ROOT

SERVICES = ("scheduler_svc", "env_svc", "rollout_svc", "trainer_svc", "gateway_svc")
FOLDERS = ("common", *SERVICES, "marlaas", "bench", "migrations", "docs", "examples", "models", "recipes", "tests")
MAX_MODULES = 14
"""Maximum number of modules directly in a package, besides `__init__` and `__main__`."""
MAX_LINES = 350
STAND_INS = "tests/env/guests/standins"
"""Folder of modules that stand in for another project's."""
UNBOUNDED = ("bench", "migrations/versions", "tests")
"""Folders that may have any number of modules: programs and revisions, which are looked up by name, and tests, which mirror the code."""


def modules() -> list[Path]:
    """Python files, relative to the repository."""
    return sorted(path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def imports_of(path: Path) -> list[str]:
    """Modules, or names in them, that a file imports, wherever it does so."""
    found: list[str] = []
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


def is_unbounded(folder: str) -> bool:
    return folder in UNBOUNDED or folder.startswith("tests/")


def test_packages_have_few_modules() -> None:
    counted = Counter(path.parent.as_posix() for path in modules() if path.stem not in ("__init__", "__main__"))
    crowded = {folder: count for folder, count in counted.items() if count > MAX_MODULES and not is_unbounded(folder)}
    assert not crowded, f"{MAX_MODULES} modules a package are the maximum: make packages by subject of those in {crowded}"


def test_modules_are_short() -> None:
    counted = {path.as_posix(): len((ROOT / path).read_text().splitlines()) for path in modules()}
    long = {path: lines for path, lines in counted.items() if lines > MAX_LINES and not path.startswith("migrations/versions/")}
    assert not long, f"{MAX_LINES} lines a module are the maximum: split by idea {long}"


def test_packages_name_their_modules() -> None:
    """A reader finds a module by the docstrings alone, from the service's down, and where a behaviour is tested by those of the tests."""
    missing: dict[str, list[str]] = {}
    for init in [path for path in modules() if path.name == "__init__.py" and path.parts[0] in ("common", "marlaas", "tests", *SERVICES)]:
        if init.is_relative_to(STAND_INS):
            continue
        words = set(re.findall(r"\w+", ast.get_docstring(ast.parse((ROOT / init).read_text())) or ""))
        within = [path for path in (ROOT / init.parent).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
        unnamed = sorted(
            path.stem for path in within if not path.stem.startswith("__") and path.stem != "conftest" and path.stem not in words
        )
        if unnamed:
            missing[init.as_posix()] = unnamed
    assert not missing


def test_no_service_has_two_classes_of_one_name() -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for path in [path for path in modules() if path.parts[0] in ("common", "marlaas", *SERVICES)]:
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault((path.parts[0], node.name), []).append(path.as_posix())
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_nothing_is_imported_from_a_conftest_or_a_test_file() -> None:
    """Such an import runs a file's fixtures and tests where they do not belong: a helper has a module."""
    wrong: dict[str, list[str]] = {}
    for path in modules():
        names = [name for name in imports_of(path) if name.startswith("tests.")]
        parts = {name: name.split(".") for name in names}
        found = [
            name
            for name in names
            if "conftest" in parts[name]
            or any(
                part.startswith("test_") and (ROOT / "/".join(parts[name][: at + 1])).with_suffix(".py").exists()
                for at, part in enumerate(parts[name])
            )
        ]
        if found:
            wrong[path.as_posix()] = found
    assert not wrong


def test_helpers_of_several_folders_of_tests_are_support() -> None:
    """A folder of tests imports its own modules and `tests/support`, which imports no folder of tests."""
    folders = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir()}
    wrong: dict[str, list[str]] = {}
    for path in [path for path in modules() if path.parts[0] == "tests"]:
        others = folders - {path.parts[1], "support"}
        if found := [name for name in imports_of(path) if name.startswith("tests.") and name.split(".")[1] in others]:
            wrong[path.as_posix()] = found
    assert not wrong

"""Pages that are made from the code say what the code says."""

import json
import re
import tomllib
from pathlib import Path

import jsonschema
import pytest

from docs.generate import FOLDER, pages

REPOSITORY = FOLDER.parent
CODE = ("common", "scheduler_svc", "env_svc", "rollout_svc", "trainer_svc", "gateway_svc")
FOLDERS = (*CODE, "marlaas", "migrations", "models", "bench", "tests", "docs", "deploy", "examples", "recipes", "requirements")
PATH = re.compile(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]*|[\w/-]+\.py)(?:::\w+)?`")
PAGES = [*REPOSITORY.glob("*.md"), *FOLDER.rglob("*.md")]
"""Pages that name files and tests."""


@pytest.mark.parametrize("page", sorted(pages()))
def test_generated_page_is_current(page: str) -> None:
    assert (FOLDER / page).read_text() == pages()[page](), "run `python -m docs.generate`"


def test_published_schema_takes_the_examples_and_refuses_a_misspelt_field() -> None:
    schema = json.loads(pages()["schemas/submit-task.1.json"]())
    job = json.loads((REPOSITORY / "examples" / "job.json").read_text())
    jobs = [job, *({"task": "a-1", "tenant": spec["tenant"], "spec": spec} for spec in example_specs())]
    for one in jobs:
        jsonschema.validate(one, schema)
    with pytest.raises(jsonschema.ValidationError, match="stepps"):
        jsonschema.validate({**job, "spec": {**job["spec"], "stepps": 1}}, schema)


def test_every_status_of_an_error_is_in_the_table_of_errors() -> None:
    operations = [one for path in json.loads(pages()["schemas/openapi.json"]())["paths"].values() for one in path.values()]
    answered = {int(status) for one in operations for status in one["responses"] if int(status) >= 400} | {405, 421}
    table = (FOLDER / "http.md").read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    explained = {int(status) for row in re.findall(r"^\| ([\d, ]+)", table, re.MULTILINE) for status in row.split(",")}
    assert answered == explained


def example_specs() -> list[dict[str, object]]:
    files = [*(REPOSITORY / "examples").rglob("*.toml"), *(REPOSITORY / "recipes").rglob("task.toml")]
    return [tomllib.loads(path.read_text()) for path in sorted(files) if path.name not in ("pools.toml", "pyproject.toml")]


def written_in_code(pattern: str) -> set[str]:
    """Captures of `pattern` in the services' code."""
    files = [path for package in CODE for path in (REPOSITORY / package).rglob("*.py")]
    return {found for path in files for found in re.findall(pattern, path.read_text())}


@pytest.mark.parametrize(
    ("what", "pattern"),
    [("log event", r'log\.(?:info|warning|error|exception)\(\s*"([a-z_]+)"'), ("metric", r'(?:Counter|Gauge|Histogram)\(\s*"([a-z_]+)"')],
)
def test_operations_explain_every(what: str, pattern: str) -> None:
    explained = set(re.findall(r"`([a-z_]+)`", Path(FOLDER / "operations.md").read_text()))
    missing = written_in_code(pattern) - explained
    assert not missing, f"docs/operations.md explains no {what} {sorted(missing)}"


def test_pages_name_files_and_tests_that_exist() -> None:
    files = [path for folder in FOLDERS for path in [REPOSITORY / folder, *(REPOSITORY / folder).rglob("*")]]
    tests = {name for path in files if path.suffix == ".py" for name in re.findall(r"def (test_\w+)", path.read_text())}
    ends = {"/".join(path.parts[-length:]) for path in files for length in range(1, 7)}
    for page in PAGES:
        text = page.read_text()
        gone = [named for named in PATH.findall(text) if named.rstrip("/") not in ends]
        gone += [link for link in re.findall(r"\]\(([^)#:]+)[#)]", text) if not (page.parent / link).exists()]
        gone += [test for test in re.findall(r"::(test_\w+)`", text) if test not in tests]
        assert not gone, f"{page.name} names {gone}"

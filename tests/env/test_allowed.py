"""Which names a task may give: refused before anything is imported, and what is imported may raise anything."""

import sys
from pathlib import Path

import pytest

from common.errors import Fatal
from common.spec import EnvironmentSection
from env_svc import datasets, registry
from env_svc.allowed import AllowedNames
from env_svc.calls import BuildFailed, build_safely
from env_svc.datasets import ListedDatasets
from env_svc.registry import UnknownEnvironment
from env_svc.tools import registry as tool_registry
from env_svc.tools.registry import UnknownTool


def section(name: str, *tools: str) -> EnvironmentSection:
    return EnvironmentSection.model_validate({"name": name, "tools": tools})


@pytest.mark.parametrize(
    ("entries", "environment", "allowed"),
    [
        ("installed", section("reasoning_gym:gcd"), True),
        ("installed", section("calculator", "python", "calculator"), True),
        ("installed", section("hosted_game:easy"), True),
        ("", section("calculator"), True),
        ("installed", section("lib2to3.__main__:x"), False),
        ("installed", section("module:x"), False),
        ("installed", section("calculator", "os:system"), False),
        ("installed", section("calculator", "python:x"), False),
        ("calculator", section("calculator"), True),
        ("calculator", section("calculator", "python"), False),
        ("calculator", section("synthetic"), False),
        ("games.*:*", section("games.chess:Chess"), True),
        ("games.*:*", section("gamesXchess:Chess"), False),
        ("installed, games:?o", section("games:Go"), True),
        ("installed, acme=games:*", section("games:Go"), True),
        ("installed, beta=games:*", section("games:Go"), False),
        ("beta=games:*", section("calculator"), False),
        ("*", section("lib2to3.__main__:x", "os:system"), True),
        ("installed, _operator=*", section("lib2to3.__main__:x"), False),
        ("installed, _operator=*", section("calculator"), True),
    ],
)
def test_list_says_who_may_give_a_name(entries: str, environment: EnvironmentSection, allowed: bool) -> None:
    assert (AllowedNames(entries, ["hosted_game"]).objection("acme", environment, by_operator=False) is None) is allowed


def test_operator_has_entries_of_its_own() -> None:
    names, module = AllowedNames("installed, _operator=games:*"), section("games:Go", "games:lookup")
    assert names.objection("acme", module, by_operator=True) is None
    assert "environment 'games:Go' is not allowed here" in (names.objection("acme", module, by_operator=False) or "")
    assert names.tool_objection("games:lookup") is None and names.tool_objection("os:system") is not None


def test_tool_that_a_tenants_own_environment_names_needs_an_entry_of_that_tenant() -> None:
    names = AllowedNames("installed, _operator=games:*, acme=dice:*")
    assert names.tool_objection("calculator", "acme") is None and names.tool_objection("dice:D6", "acme") is None
    for name, tenant in (("games:lookup", "acme"), ("dice:D6", "globex")):
        assert f"tool '{name}' is not allowed here" in (names.tool_objection(name, tenant) or "")


@pytest.mark.parametrize("entries", ["installed", "games:*", "*"])
def test_own_environments_are_allowed_where_they_are_served_and_there_alone(entries: str) -> None:
    for by_operator in (True, False):
        assert AllowedNames(entries, serves_own=True).objection("acme", section("own:x@" + "0" * 12), by_operator=by_operator) is None
        found = AllowedNames(entries).objection("acme", section("own:x"), by_operator=by_operator)
        assert (found or "").startswith("environment 'own:x' is not allowed here")
    with_tool = AllowedNames("installed", serves_own=True).objection("acme", section("own:x", "os:system"), by_operator=False)
    assert (with_tool or "").startswith("tool 'os:system' is not allowed here")


def test_refusal_says_what_is_allowed() -> None:
    found = AllowedNames("installed, games:*, beta=secret.games:*").objection("acme", section("reasoning_gim:gcd"), by_operator=True)
    assert found == (
        "environment 'reasoning_gim:gcd' is not allowed here; did you mean 'reasoning_gym'?; the operator allows (MARLAAS_ENV_ALLOWED):"
        " installed (calculator, code, compose, exact_words, math, multi_hop, reasoning_gym, synthetic), games:*"
    )
    assert "tool 'os:system' is not allowed here; the operator allows" in (
        AllowedNames("").objection("acme", section("code", "os:system"), by_operator=True) or ""
    )


def test_list_that_is_not_one_stops_the_process() -> None:
    with pytest.raises(Fatal, match="MARLAAS_ENV_ALLOWED: 'my games' is no pattern of names"):
        AllowedNames("installed, my games")


LIST = "open/all@1, acme=open/acmes@2, _operator=*"


@pytest.mark.parametrize(
    ("tenant", "by_operator", "dataset", "allowed"),
    [
        *[(tenant, by, "open/all", True) for tenant in ("acme", "globex") for by in (False, True)],
        ("acme", False, "open/acmes", True),
        ("globex", False, "open/acmes", False),
        ("globex", True, "open/acmes", True),
        ("globex", True, "any/thing", True),
        ("acme", False, "any/thing", False),
        ("acme", False, "no hub's name", True),  # refused by the environment itself, in words of its own
    ],
)
@pytest.mark.parametrize("name", ["math", "code"])
def test_a_data_set_is_the_tenants_or_the_operators(name: str, tenant: str, by_operator: bool, dataset: str, allowed: bool) -> None:
    asked = EnvironmentSection(name=name, options={"dataset": dataset})
    objection = ListedDatasets(LIST).objection(tenant, asked, by_operator=by_operator)
    assert (objection is None) == allowed
    if objection is not None:
        known = "open/acmes, open/all" if tenant == "acme" else "open/all"
        assert objection == f"option 'dataset': '{dataset}' is not offered here; the operator lists (MARLAAS_ENV_DATASETS): {known}"


def test_options_of_that_name_of_other_environments_are_their_own() -> None:
    asked = EnvironmentSection(name="games:Go", options={"dataset": "any/thing"})
    assert ListedDatasets("").objection("acme", asked, by_operator=False) is None


def test_one_data_set_has_one_revision() -> None:
    with pytest.raises(Fatal, match="'a/b' has two revisions, 1 and 2"):
        ListedDatasets("a/b@1, acme=a/b@2")
    assert ListedDatasets("a/b@1, acme=a/b@1").revisions == {"a/b": "1"}


def test_every_environment_that_reads_data_sets_is_known() -> None:
    readers = {path.stem for path in (Path(datasets.__file__).parent / "builtin").glob("*.py") if "rows_of_dataset" in path.read_text()}
    assert readers == {"math_problems", "code"} and {"math", "code"} == datasets.READERS


RAISED = [
    "raise SystemExit(2)",
    "raise KeyboardInterrupt",
    "import asyncio; raise asyncio.CancelledError",
    "class E(BaseException): pass\nraise E",
]


@pytest.mark.parametrize("source", [*RAISED, "def __getattr__(name): raise SystemExit(2)"])
def test_module_that_raises_anything_costs_one_refusal(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "guest_that_raises.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "guest_that_raises", raising=False)
    with pytest.raises(UnknownEnvironment, match="environment 'guest_that_raises:X' cannot be imported"):
        registry.find.__wrapped__("guest_that_raises:X")
    with pytest.raises(UnknownTool, match="tool 'guest_that_raises:X' cannot be imported"):
        tool_registry.find.__wrapped__("guest_that_raises:X")


def test_class_that_raises_anything_costs_one_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = (
        "from env_svc.contract import Environment\nclass X(Environment):\n    @classmethod\n    def arguments(cls): raise SystemExit(2)\n"
    )
    (tmp_path / "guest_with_a_trap.py").write_text(source + "    async def open(self, i, s): ...\n    async def step(self, s, r): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BuildFailed, match="environment 'guest_with_a_trap:X' cannot be built: SystemExit: 2"):
        build_safely("guest_with_a_trap:X", lambda: registry.build("guest_with_a_trap:X", {}))

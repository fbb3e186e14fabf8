"""Errors about a wrong task file, settings or pools."""

from pathlib import Path
from typing import Any

import pytest

from common.errors import Fatal, Reject
from common.pools import objections, read_pools
from common.runtime.settings import Settings
from common.spec import Algorithm, TaskSpec, parse_spec


def raw(**changes: Any) -> dict[str, Any]:
    base: dict[str, Any] = {"name": "sums", "tenant": "acme", "pool": "tiny", "steps": 3, "environment": {"name": "reasoning_gym:gcd"}}
    return base | changes


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"stepz": 1}, "stepz: no such field; did you mean 'steps'?"),
        ({"lora": {"rnk": 4}}, "lora.rnk: no such field; did you mean 'rank'?"),
        ({"lora": {"xyzzy": 4}}, "lora.xyzzy: no such field; known here: rank, alpha, targets"),
        ({"steps": "many"}, "steps: must be a whole number, not 'many'"),
        ({"steps": 0}, "steps: must be 1 or more, not 0"),
        ({"algorithm": {"group_size": 1}}, "compares attempts at one prompt: use 2 or more"),
        ({"name": "Ünfit"}, "name: must be small letters, digits and hyphens, 40 at most"),
        ({"sampling": {"stop": list("abcde")}}, "sampling.stop: must have 4 entries or fewer, not 5"),
        ({"sampling": {"stop": [""]}}, "sampling.stop.0: must not be empty"),
        ({"sampling": {"template": {"a b": 1}}}, "sampling.template: its key 'a b' must be a name of letters"),
        ({"sampling": {"template": {"a": "x" * 5000}}}, "sampling.template: the arguments have 5009 bytes as JSON, the maximum is 4096"),
        ({"sampling": {"template": {f"a{number}": 1 for number in range(17)}}}, "sampling.template: must have 16 entries or fewer"),
        ({"optimizer": {"betas": [0.9]}}, "optimizer.betas.1: required, but not given"),
        ({"lora": {"targets": []}}, "lora.targets: must not be empty"),
        ({"sampling": {"top_p": 0.9}}, "sampling.top_p: no such field"),
        ({"environment": {"name": "a b"}}, "environment.name: must be the name of an environment"),
        ({"correction": {"max_sampler_mismatch": float("inf")}}, "correction.max_sampler_mismatch: inf is no number that can be stored"),
        ({"stop": {"seconds": float("nan")}}, "stop.seconds: nan is no number that can be stored"),
        ({"environment": {"name": "x", "options": {"a": [1, 10**20]}}}, "environment.options.a.1: 100000000000000000000 is no number"),
        ({"environment": {"name": "x", "options": {"a": "b\0"}}}, "environment.options.a: a text with a null character"),
        ({"environment": {"name": "x", "options": {"a": "b" * 2**20}}}, "bytes as JSON, the maximum is 1048576"),
        ({"optimizer": {"weight_decay": 11.0}}, "optimizer.weight_decay: 11 is more than 10"),
        ({"environment": {"name": "x", "weights": {"reward": 1e9}}}, "environment.weights.reward: 1e+09 is beyond ±1e+06"),
        ({"steps": 10**6, "algorithm": {"groups_per_step": 256}}, "are 256000000 groups; a task's maximum is 250000000"),
        ({"steps": 10**6, "evaluation": {"every": 1, "prompts": 256}}, "are 256000512 groups; a task's maximum is 250000000"),
        (
            {"steps": 10**6, "evaluation": {"every": 1, "prompts": 128, "protocol": [{"name": "a"}, {"name": "b"}]}},
            "evaluation: 256 prompts every 1 of 1000000 steps are 256000512 groups",
        ),
        (
            {"evaluation": {"protocol": [{"name": "a", "promts": 3}]}},
            "evaluation.protocol.0.promts: no such field; did you mean 'prompts'?",
        ),
        ({"evaluation": {"protocol": [{"prompts": 3}]}}, "evaluation.protocol.0.name: required, but not given"),
        ({"evaluation": {"protocol": [{"name": "a"}, {"name": "a"}]}}, "protocol has two tables named 'a'; give each a name of its own"),
        ({"evaluation": {"protocol": [{"name": f"a{each}"} for each in range(9)]}}, "must have 8 entries or fewer"),
        (
            {"evaluation": {"attempts": 4, "protocol": [{"name": "a"}]}},
            "evaluation.protocol.0: attempts is 4, but at temperature 0 they would all be the same",
        ),
        (
            {"evaluation": {"every": 1, "prompts": 1}, "stop": {"reward": 0.5}},
            "stop.reward: protocol 'main' has prompts = 1, and a mean over so few has no interval; use 2 or more, or evaluation.decide_by",
        ),
        (
            {"evaluation": {"options": {"a": "b" * 2**19}, "protocol": [{"name": "a"}, {"name": "b"}]}},
            "evaluation.options: every protocol without options of its own has a copy, and then the task has 15",
        ),
        ({"stop": {"patience": 3}}, "stop.patience is about evaluations: set evaluation.every too"),
        (
            {"algorithm": {"group_size": 4, "advantage": "reinforce_pp", "max_refills": 8}},
            "algorithm.max_refills: 8, but advantage 'reinforce_pp' compares attempts with the whole step",
        ),
        ({"algorithm": {"group_size": 256, "groups_per_step": 1024}}, "are 262144 attempts; the maximum per step is 131072"),
        ({f"x{number}": 1 for number in range(24)}, "x19: no such field; known here: name, tenant"),
        ({f"x{number}": 1 for number in range(24)}, "; and 4 more"),
        ({f"x{number}": 1 for number in range(9000)}, "task: has 9005 fields; known here: name, tenant"),
        ({"sampling": {f"x{number}": 1 for number in range(9000)}}, "sampling: has 9000 fields; known here: temperature, max_tokens"),
    ],
)
def test_wrong_field_is_named_with_what_was_expected(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(Reject) as caught:
        parse_spec(raw(**changes))
    assert complaint in str(caught.value)


def test_every_wrong_field_is_reported_at_once() -> None:
    with pytest.raises(Reject, match=r"steps.*; lora\.rank"):
        parse_spec(raw(steps=-1, lora={"rank": 0}))


def test_missing_field_is_named() -> None:
    incomplete = raw()
    del incomplete["tenant"]
    with pytest.raises(Reject, match="tenant: required"):
        parse_spec(incomplete)


def test_every_field_of_a_task_is_documented() -> None:
    """Fields without a docstring must speak for themselves; sections always have one."""
    import ast
    import inspect

    from common.spec import evaluation, sections, task

    modules = (sections, evaluation, task)
    found = [node for module in modules for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.ClassDef)]
    assert TaskSpec.__name__ in {node.name for node in found}
    for node in found:
        assert ast.get_docstring(node), node.name


def test_maximum_trajectory_length_counts_every_turn() -> None:
    spec = parse_spec(raw(sampling={"max_tokens": 10}, limits={"max_prompt_tokens": 100, "max_turns": 3, "max_reply_tokens": 20}))
    assert spec.trajectory_tokens == 100 + 3 * 10 + 2 * 20


def pools_file(tmp_path: Path, text: str) -> Path:
    (tmp_path / "model").mkdir(exist_ok=True)
    path = tmp_path / "pools.toml"
    path.write_text(text)
    return path


def test_pool_that_cannot_take_a_task_says_why(tmp_path: Path) -> None:
    pools = read_pools(pools_file(tmp_path, '[tiny]\nmodel = "model"\ncontext_tokens = 128\nmax_rank = 8\n'))
    spec: TaskSpec = parse_spec(raw(lora={"rank": 16}))
    complaints = objections(spec, pools)
    assert len(complaints) == 2
    assert "16 is above what pool 'tiny' allows: 8" in complaints[0]
    assert "context of 128" in complaints[1]
    assert objections(parse_spec(raw(pool="big")), pools) == ["pool: no pool 'big' here; offered: tiny"]


def test_temperature_that_engines_refuse_is_refused_at_submission(tmp_path: Path) -> None:
    pools = read_pools(pools_file(tmp_path, '[tiny]\nmodel = "model"\n'))
    assert objections(parse_spec(raw(sampling={"temperature": 2.0}, evaluation={"temperature": 2.0})), pools) == []
    assert objections(parse_spec(raw(sampling={"temperature": 3.0}, evaluation={"temperature": 2.5})), pools) == [
        "sampling.temperature: 3 is above what engines take: 2",
        "evaluation 'main': temperature: 2.5 is above what engines take: 2",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('[tiny]\nmodel = "missing"\n', "pool 'tiny': model folder"),
        ('[tiny]\nmodel = "model"\nmax_rank = 7\n', "tiny.max_rank"),
        ('[tiny]\nmodel = "model"\nsequenzes = 7\n', "tiny.sequenzes"),
        ("[tiny\n", "pools.toml"),
    ],
)
def test_wrong_pools_file_stops_the_process_with_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(Fatal) as caught:
        read_pools(pools_file(tmp_path, text))
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pools_file_that_cannot_be_read_stops_the_process_with_one_line(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match=r"pools file .* cannot be read: Is a directory; correct it, or set MARLAAS_POOLS_FILE"):
        read_pools(tmp_path)
    (tmp_path / "pools.toml").write_bytes("[tïny]".encode("latin-1"))
    with pytest.raises(Fatal, match=r"pools\.toml is not UTF-8 \(invalid continuation byte at byte 2\); save it as UTF-8"):
        read_pools(tmp_path / "pools.toml")


def test_missing_pools_file_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(Fatal, match="MARLAAS_POOLS_FILE"):
        read_pools(tmp_path / "none.toml")


def test_hub_names_are_left_to_the_libraries(tmp_path: Path) -> None:
    assert read_pools(pools_file(tmp_path, '[qwen]\nmodel = "Qwen/Qwen3-0.6B"\n'))["qwen"].model == "Qwen/Qwen3-0.6B"


def test_unknown_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLAAS_NATS_ULR", "nats://x")
    with pytest.raises(Fatal, match="MARLAAS_NATS_ULR is not a setting"):
        Settings.read()


def test_bad_setting_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLAAS_HTTP_PORT", "http")
    with pytest.raises(Fatal, match=r"MARLAAS_HTTP_PORT.*'http'"):
        Settings.read()


@pytest.mark.parametrize(
    ("algorithm", "bounds"),
    [
        ({}, (0.2, 0.28, "token")),
        ({"loss": "ppo"}, (0.2, 0.28, "token")),
        ({"loss": "reinforce", "max_staleness": 0}, (0.2, 0.28, "token")),
        ({"loss": "gspo"}, (3e-4, 4e-4, "sequence")),
        ({"loss": "cispo"}, (1.0, 0.28, "token")),
        ({"loss": "gspo", "clip_low": 0.2}, (0.2, 4e-4, "sequence")),
        ({"loss": "gspo", "normalize": "token", "clip_high": 0.28}, (3e-4, 0.28, "token")),
        ({"loss": "cispo", "clip_low": 0.2, "clip_high": 4}, (0.2, 4.0, "token")),
    ],
)
def test_bounds_and_normalisation_follow_the_loss_unless_given(algorithm: dict[str, Any], bounds: tuple[float, float, str]) -> None:
    found = parse_spec(raw(algorithm=algorithm)).algorithm
    assert (found.clip_low, found.clip_high, found.normalize) == bounds
    assert Algorithm.model_validate(algorithm) == found, "a section by itself has the same defaults"


def test_protocols_take_what_they_do_not_set_from_their_section() -> None:
    shared = {"every": 5, "prompts": 9, "attempts": 4, "temperature": 0.7, "seed": 3, "success": 0.5, "options": {"split": "test"}}
    tables = [{"name": "greedy", "attempts": 1, "temperature": 0}, {"name": "longer", "options": {"split": "longer"}}]
    spec = parse_spec(raw(evaluation=shared | {"protocol": tables}))
    greedy, longer = spec.evaluation.protocols
    assert (greedy.attempts, greedy.temperature, greedy.prompts, greedy.seed, greedy.success) == (1, 0.0, 9, 3, 0.5)
    assert (longer.attempts, longer.temperature, longer.options) == (4, 0.7, {"split": "longer"})
    assert parse_spec(spec.model_dump(mode="json")) == spec
    only = parse_spec(raw(evaluation=shared))
    [main] = only.evaluation.protocols
    assert only.evaluation.protocols[0] is main, "made once: the scheduler asks for them at every evaluation"
    assert only == parse_spec(only.model_dump(mode="json")), "what was made is no field"
    assert main == longer.model_copy(update={"name": "main", "options": {"split": "test"}})

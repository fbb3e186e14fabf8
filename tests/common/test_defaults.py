"""Defaults of a pool: order, provenance, and complaints about them."""

from pathlib import Path
from typing import Any

import pytest

from common.errors import Fatal, Reject
from common.pools import Pool, layers_of, read_pools
from common.spec import complete, parse_spec, sources

TASK: dict[str, Any] = {"name": "sums", "tenant": "acme", "pool": "big", "steps": 3, "environment": {"name": "toy"}}
BIG = Pool(
    model="m",
    max_rank=64,
    profile="1b",
    defaults={"optimizer": {"learning_rate": 1e-5}, "sampling": {"template": {"a": 1, "b": 2}}, "evaluation": {"every": 5}, "priority": 3},
)


def of_pool(raw: dict[str, Any], pool: Pool = BIG) -> tuple[Any, dict[str, str]]:
    layers = layers_of(raw, {"big": pool})
    spec = complete(raw, layers)
    return spec, sources(raw, layers, spec)


def test_values_come_from_task_pool_profile_loss_other_fields_and_built_in_in_that_order() -> None:
    raw = TASK | {"lora": {"rank": 8}, "algorithm": {"loss": "gspo", "clip_low": 0.1, "max_staleness": 4}, "sampling": {"max_tokens": 9}}
    spec, origins = of_pool(raw)
    expected = {
        "name": ("sums", "task"),
        "lora.rank": (8, "task"),
        "algorithm.clip_low": (0.1, "task"),
        "sampling.max_tokens": (9, "task"),
        "optimizer.learning_rate": (1e-5, "pool 'big'"),
        "sampling.template": ({"a": 1, "b": 2}, "pool 'big'"),
        "priority": (3, "pool 'big'"),
        "lora.alpha": (32.0, "profile '1b'"),
        "optimizer.betas": ((0.9, 0.95), "profile '1b'"),
        "algorithm.max_refills": (16, "profile '1b'"),
        "correction.max_sampler_mismatch": (0.2, "profile '1b'"),
        "algorithm.clip_high": (4e-4, "loss 'gspo'"),
        "correction.proximal": ("start", "algorithm.max_staleness"),
        "keep.best": (1, "evaluation.every"),
        "sampling.temperature": (1.0, "built-in"),
        "seed": (0, "built-in"),
    }
    for path, (value, origin) in expected.items():
        section, _, field = path.rpartition(".")
        assert (getattr(getattr(spec, section) if section else spec, field), origins[path]) == (value, origin), path
    assert len(origins) == sum(len(part) if isinstance(part, dict) else 1 for part in nested(spec.model_dump()).values())


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """Fields of sections, where a value that is a table counts as one."""
    return {name: value if isinstance(value, dict) and name != "metadata" else None for name, value in values.items()}


def test_field_that_the_task_gives_replaces_the_default_whole() -> None:
    spec, origins = of_pool(TASK | {"sampling": {"template": {"c": 3}}})
    assert (spec.sampling.template, origins["sampling.template"]) == ({"c": 3}, "task")


@pytest.mark.parametrize("raw", [TASK, TASK | {"algorithm": {"loss": "cispo", "max_staleness": 2}, "evaluation": {"every": 2}}])
def test_pool_without_profile_and_defaults_changes_no_value(raw: dict[str, Any]) -> None:
    spec, origins = of_pool(raw, Pool(model="m"))
    assert spec == parse_spec(raw)
    assert not any("pool" in origin or "profile" in origin for origin in origins.values())


@pytest.mark.parametrize(("profile", "rate"), [("small", 1e-4), ("1b", 4e-5), ("8b", 2e-5)])
@pytest.mark.parametrize(("precision", "mismatch"), [("float32", 0.05), ("bfloat16", 0.2), ("auto", 0.2)])
def test_profile_sets_the_rate_by_size_and_the_mismatch_by_precision(profile: Any, rate: float, precision: Any, mismatch: float) -> None:
    spec, _ = of_pool(TASK, Pool(model="m", max_rank=32, profile=profile, precision=precision))
    assert (spec.optimizer.learning_rate, spec.correction.max_sampler_mismatch) == (rate, mismatch)
    assert (spec.lora.rank, spec.lora.alpha, len(spec.lora.targets), spec.optimizer.warmup_steps) == (32, 32.0, 7, 5)


def test_complaint_names_the_default_that_takes_part_in_it() -> None:
    raw = TASK | {"algorithm": {"group_size": 1, "advantage": "reinforce_pp"}}
    with pytest.raises(Reject, match=r"algorithm\.max_refills: 16, .*; algorithm\.max_refills is the default of profile '1b'$"):
        of_pool(raw)
    with pytest.raises(Reject, match=r"lora\.rank: must be a whole number, not 'x'$"):
        of_pool(TASK | {"lora": {"rank": "x"}})


@pytest.mark.parametrize("odd", [{"pool": ["big"]}, {"lora": 3}, {"sampling": None}])
def test_wrong_task_is_still_answered_with_its_own_errors(odd: dict[str, Any]) -> None:
    with pytest.raises(Reject, match=next(iter(odd))):
        of_pool(TASK | odd)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('profile = "2b"', "big.profile: must be 'small', '1b' or '8b'"),
        ('profile = "1b"', "big.defaults: lora.rank: 32 is above the pool's max_rank of 16"),
        ("defaults = { lora = { rnk = 4 } }", "big.defaults: lora.rnk: no such field; did you mean 'rank'?"),
        ("defaults = { optimizer = { learning_rate = 7 } }", "big.defaults: optimizer.learning_rate: must be 1 or less, not 7"),
        ('defaults = { steps = 4, tenant = "a" }', "big.defaults: tenant: a task gives it itself; steps: a task gives it itself"),
        ('revision = "main"', "big.revision: "),
        ('revision = "../x"', "big.revision: must be a commit, tag or branch, not '../x'"),
        ("defaults = { algorithm = { group_size = 1 } }", "big.defaults: algorithm: group_size is 1, but advantage 'grpo'"),
    ],
)
def test_wrong_defaults_of_a_pool_stop_the_process_with_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "model").mkdir()
    path = tmp_path / "pools.toml"
    path.write_text(f'[big]\nmodel = "model"\n{text}\n')
    with pytest.raises(Fatal) as caught:
        read_pools(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)

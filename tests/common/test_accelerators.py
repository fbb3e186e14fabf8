"""Shared accelerators in the pools file."""

from pathlib import Path

import pytest

from common.accelerators import Tier
from common.errors import Fatal
from common.messages import PoolClock
from common.pools import Accelerator, places, read_accelerators, read_pools

CPU = '[accelerator.a]\ndevice = "cpu"\ncores = "1"\nmemory_gib = 2\n'
ON_A = '[p]\nMODEL\non = "a"\n'


def read(tmp_path: Path, text: str) -> tuple[dict[str, Accelerator], list[tuple[str, str]]]:
    """Accelerators, and each executor with its accelerator."""
    (tmp_path / "m").mkdir(exist_ok=True)
    path = tmp_path / "pools.toml"
    named = text if "MODEL" in text or not text.startswith("[") else f"{text}\n[x]\nMODEL\n"
    path.write_text(named.replace("MODEL", 'model = "m"'))
    pools = read_pools(path)
    return read_accelerators(path, pools), [(each.executor, each.accelerator) for each in places(pools)]


def test_file_without_accelerators_has_none(tmp_path: Path) -> None:
    assert read(tmp_path, "[p]\nMODEL\n") == ({}, [])


def test_pool_on_an_accelerator_has_both_executors_there(tmp_path: Path) -> None:
    found, executors = read(tmp_path, CPU + '[p]\nMODEL\non = "a"\n[q]\nMODEL\n')
    assert found["a"].cores == (1,)
    assert executors == [("rollout-p", "a"), ("trainer-p", "a")]


def test_samplers_and_trainers_have_accelerators_of_their_own(tmp_path: Path) -> None:
    two = CPU + '[accelerator.b]\ndevice = "cuda:0"\n'
    _, executors = read(tmp_path, two + '[p]\nMODEL\ngenerate_on = ["a", "b"]\ntrain_on = ["b"]\n')
    assert executors == [("rollout-p", "a"), ("rollout-p", "b"), ("trainer-p", "b")]


@pytest.mark.parametrize(
    "text",
    [
        CPU + '[p]\nMODEL\ntrain_on = ["a"]\nprecision = "bfloat16"\n',
        CPU + '[p]\nMODEL\non = "a"\nprecision = "auto"\n',
        '[accelerator.a]\ndevice = "cuda:0"\n[p]\nMODEL\non = "a"\nprecision = "bfloat16"\n',
    ],
)
def test_bfloat16_is_for_trainers_and_gpus(tmp_path: Path, text: str) -> None:
    assert read(tmp_path, text)[1]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (CPU + '[p]\nMODEL\non = "b"\n', "p: there is no accelerator 'b'; described: a"),
        ('[p]\nMODEL\non = "b"\n', "p: there is no accelerator 'b'; described: none"),
        (CPU + '[p]\nMODEL\non = "a"\ntrain_on = ["a"]\n', "p: give `on`, or `generate_on` and `train_on`, not both"),
        (CPU + '[p]\nMODEL\ntrain_on = ["a", "a"]\n', "p.train_on: an accelerator is named twice"),
        (CPU + '[p]\nMODEL\non = "a"\n[p.serving]\n', "say serve_parked = true, or remove [p.serving]"),
        (CPU + '[p]\nMODEL\non = "a"\nprecision = "bfloat16"\n', "but its sampler is on accelerator.a, a shared CPU: vLLM keeps copies"),
        (CPU + "[p]\nMODEL\nserve_parked = true\n", "p: serve_parked is for a pool with [p.serving]"),
        (
            CPU + '[p]\nMODEL\non = "a"\nserve_parked = true\n[p.serving]\nttft_ms = 100\ntpot_ms = 10\n',
            "p: a parked sampler misses every latency goal; give it an accelerator of its own, without serve_parked, or remove ttft_ms",
        ),
        (
            CPU + '[p]\nMODEL\non = "a"\n[p.serving]\nttft_ms = 100\ntpot_ms = 10\n',
            "p: a parked sampler misses every latency goal; give it an accelerator of its own, without serve_parked, or remove ttft_ms",
        ),
        (CPU + '[p]\nMODEL\non = "a"\n[p.serving]\nttft_ms = 100\n', "p.serving: give ttft_ms and tpot_ms both, or neither"),
        (CPU + '[p]\nMODEL\nparked = "host"\n', "p: parked is for a pool on a shared accelerator"),
        (CPU + '[p]\nMODEL\non = "a"\nparked = "off"\n', "p.parked: must be"),
        ('[accelerator.a]\ndevice = "cpu"\nmemory_gib = 2\n', "accelerator.a: on a CPU the cores are the accelerator"),
        ('[accelerator.a]\ndevice = "cpu"\ncores = "0"\n', "accelerator.a: on a CPU give memory_gib"),
        ('[accelerator.a]\ndevice = "tpu"\n', "accelerator.a.device: must be cpu, cuda:N, or the UUID of a whole GPU"),
        (
            '[accelerator.a]\ndevice = "MIG-7f7f7f7f-0000"\n',
            "a whole GPU: MIG devices cannot be shared, not 'MIG-7f7f7f7f-0000'",
        ),
        (CPU + CPU.replace(".a]", ".b]"), "accelerator.b: core 1 belongs to accelerator.a already"),
        (CPU + 'policy = "best"\n', "accelerator.a.policy: must be"),
        (CPU + 'policy = "static"\n', "accelerator.a.policy: must be"),
        ('[accelerator]\nmodel = "m"\n', "accelerator.model: must be"),
        (CPU.replace('"1"', '"one"'), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (CPU.replace('"1"', "1"), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (CPU.replace('"1"', '"1-"'), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (CPU.replace('"1"', '"-1"'), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (CPU.replace('"1"', '"3-1"'), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (CPU.replace('"1"', '"1,1"'), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (CPU.replace('"1"', '["a"]'), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (CPU.replace('"1"', "true"), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (CPU.replace('"1"', "1.5"), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (CPU.replace('"1"', '"0-99999999"'), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (CPU.replace('"1"', '"\uff11"'), "accelerator.a.cores: must be numbers of cores such as '0' or '0,2-3', each once, not "),
        (" ", "describes no pool; add one, as [tiny]"),
        ("# nothing\n", "describes no pool; add one, as [tiny]"),
    ],
)
def test_wrong_combinations_stop_the_process_with_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(Fatal) as caught:
        read(tmp_path, text)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sampler_alone_on_its_accelerators_is_served_without_slices(tmp_path: Path) -> None:
    two = CPU + '[accelerator.b]\ndevice = "cuda:0"\n'
    alone = '[p]\nMODEL\ngenerate_on = ["a", "b"]\n[p.serving]\n'
    assert read(tmp_path, two + alone)[1] == [("rollout-p", "a"), ("rollout-p", "b")]
    assert read_pools(tmp_path / "pools.toml")["p"].stays_awake
    with pytest.raises(Fatal, match=r"p: its sampler shares accelerator\.b, .* say serve_parked = true, or remove"):
        read(tmp_path, two + alone + '[q]\nMODEL\ntrain_on = ["b"]\n')
    read(tmp_path, two + alone.replace("MODEL", "MODEL\nserve_parked = true"))
    assert not read_pools(tmp_path / "pools.toml")["p"].stays_awake


def test_deepest_tier_of_a_pool(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    path = tmp_path / "pools.toml"
    path.write_text(CPU + '[p]\nmodel = "m"\non = "a"\n[q]\nmodel = "m"\non = "a"\nparked = "host"\n')
    assert {name: pool.deepest_tier for name, pool in read_pools(path).items()} == {"p": Tier.DISK, "q": Tier.HOST}


def test_clock_of_a_pool_stands_while_its_sampler_is_parked() -> None:
    assert PoolClock(parked_s=5).parked_until_s(100) == 5
    assert PoolClock(parked_s=5, parked_since_s=90).parked_until_s(100) == 15

"""The benchmark of tiers complains of what is wrong, and measures from outside: a process that hides its memory is found."""

import json
import sys
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import llvmlite
import pytest

from bench.harness import part
from bench.harness.measures import usage
from bench.harness.measures.memory import own_bytes
from bench.harness.services import BenchError
from bench.plex.real.tiers import orders
from bench.plex.real.tiers.__main__ import complaints
from bench.plex.real.tiers.figures import tiers
from bench.plex.real.tiers.orders import Executor, Play, end
from common.accelerators import Tier

MIB = 2**20
TIER = {"freed_share": 0.97, "held_mib": 1_200.0, "processor_share": 0.0}
SAMPLER = {
    "tiers": {"device": TIER | {"freed_share": 0.0}, "host": TIER, "disk": TIER, "none": TIER},
    "cycles": {"cycles": 200, "left_mib": 1.0},
    "sequences": {"invariant": True, "requests_with_other_tokens": 0, "largest_difference": 1e-6},
    "kills": [{"tier": "host", "gone_s": 0.1, "locks_free": True, "next_works": True}],
}
TRAINER = {**SAMPLER, "sequences": {"steps_with_other_digests": 0}}
PROGRAM = """
import json, mmap, os, signal, sys, time
held = {}
for line in sys.stdin:
    match line.split()[0]:
        case "map" | "execute":
            verb, path, size = line.split()
            rights = mmap.PROT_READ | (mmap.PROT_EXEC if verb == "execute" else 0)
            held[verb] = mmap.mmap(os.open(path, os.O_RDONLY), int(size), flags=mmap.MAP_PRIVATE, prot=rights)
            sum(held[verb][:: mmap.PAGESIZE])
        case "take":
            held["private"] = bytearray(64 << 20)
        case "park":
            held["file"] = os.memfd_create("marlaas-weights")
            os.write(held["file"], held.pop("private"))
        case "share":
            held["child"] = os.fork()
            if held["child"] == 0:
                signal.pause()
        case "end":
            os.kill(held["child"], signal.SIGKILL)
            os.waitpid(held["child"], 0)
        case "fork":
            child = os.fork()
            if child == 0:
                os.execlp("sleep", "sleep", "600")
        case "wait":
            time.sleep(1)
        case "hang":
            signal.pause()
        case "die":
            break
    print(json.dumps("done"), flush=True)
"""


def test_right_figures_are_not_complained_of() -> None:
    found = {"bases": {"small": {"sampler": SAMPLER, "trainer": TRAINER}}}
    assert list(complaints(found)) == []


@pytest.mark.parametrize(
    ("executor", "path", "value", "complaint"),
    [
        ("sampler", "tiers host freed_share", 0.89, "small sampler in host frees 89.0%"),
        ("trainer", "tiers disk freed_share", 0.0, "small trainer in disk frees 0.0%"),
        ("sampler", "tiers disk processor_share", 0.01, "small sampler in disk uses 1.0% of a core"),
        ("trainer", "cycles left_mib", 16.1, "small trainer keeps 16.1 MiB after 200 cycles"),
        ("sampler", "sequences requests_with_other_tokens", 1, "small sampler gave other answers than undisturbed"),
        ("sampler", "sequences largest_difference", 0.0011, "small sampler gave log-probabilities that differ by 0.0011"),
        ("trainer", "sequences steps_with_other_digests", 1, "small trainer gave other answers than undisturbed"),
        ("sampler", "kills 0 gone_s", None, "small sampler killed in host leaves processes"),
        ("sampler", "kills 0 locks_free", False, "small sampler killed in host leaves its locks held"),
        ("trainer", "kills 0 next_works", False, "small trainer does not work after one that was killed in host"),
    ],
)
def test_each_wrong_figure_is_complained_of(executor: str, path: str, value: object, complaint: str) -> None:
    found: dict[str, Any] = json.loads(json.dumps({"sampler": SAMPLER, "trainer": TRAINER}))
    *way, last = path.split()
    place: Any = found[executor]
    for step in way:
        place = place[int(step)] if step.isdigit() else place[step]
    place[last] = value
    (said,) = complaints({"bases": {"small": found}})
    assert said.startswith(complaint)


class Dying(Executor):
    """It dies when it is ordered to tier `disk`."""

    def order(self, line: str, most_s: float = 0.0) -> Any:
        match line.split():
            case ["park", "disk"]:
                raise BenchError("the executor did not answer")
            case ["park", tier]:
                return tier, 0.1
            case ["wake"]:
                return Tier.DEVICE, 0.1
            case ["bytes"]:
                return 100 * MIB, 50 * MIB
            case _:
                return None

    def private_bytes(self) -> int:
        return 200 * MIB

    def file_bytes(self) -> int:
        return 0

    def processor_share(self, window_s: float) -> float:
        return 0.0


def test_tiers_that_were_measured_are_kept_when_a_later_one_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(part.FILE, str(tmp_path / "notes.jsonl"))
    with Popen(["true"], text=True) as process, pytest.raises(BenchError):
        tiers(Dying(process, tmp_path / "log", ""), cycles=4, closings=1)
    found, _ = part.read(tmp_path / "notes.jsonl", 0.0)
    assert list(found["tiers"]) == ["device", "host"]
    assert found["tiers"]["host"]["cache_mib"] == 50.0


def test_no_sequence_begins_after_the_time_for_all() -> None:
    assert list(Play.of(["3", "1", "60"]).numbers()) == [0, 1, 2]
    assert list(Play.of(["3", "1", "-1"]).numbers()) == []


def test_order_may_go_on_for_as_long_as_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "ANSWER_S", 0.1)
    (log := tmp_path / "log").touch()
    with Popen([sys.executable, "-c", PROGRAM], stdin=PIPE, stdout=PIPE, text=True) as process:
        executor = Executor(process, log, gpu="")
        assert executor.order("wait", 60.0) == "done"
        with pytest.raises(BenchError, match="did not answer 'hang'"):
            executor.order("hang")
        end(process)


def test_a_mapped_file_is_private_memory_unless_it_is_a_library(tmp_path: Path) -> None:
    """What the kernel calls private of a library depends on who else maps it, and is reported apart."""
    data, library = tmp_path / "data", Path(llvmlite.__file__).parent / "binding" / "libllvmlite.so"
    data.write_bytes(bytes(16 * MIB))
    with Popen([sys.executable, "-c", PROGRAM], stdin=PIPE, stdout=PIPE, text=True) as process:
        executor = Executor(process, tmp_path / "log", gpu="")
        executor.order("begin")
        before = executor.private()
        executor.order(f"map {data} {16 * MIB}")
        assert executor.private_bytes() - before.own == pytest.approx(16 * MIB, abs=MIB)
        executor.order(f"execute {library} {16 * MIB}")
        found, total = executor.private(), sum(usage.private_bytes(one.pid) for one in executor.family)
        assert found.own - before.own == pytest.approx(16 * MIB, abs=MIB)
        assert own_bytes(process.pid) == pytest.approx(found.own, abs=MIB)
        assert found.own + found.libraries == pytest.approx(total, abs=MIB)
        end(process)


def test_memory_and_death_are_seen_from_outside(tmp_path: Path) -> None:
    """Bytes that went into a file in memory are no private ones, and still seen; a child that outlives its parent is reported and ended."""
    with Popen([sys.executable, "-c", PROGRAM], stdin=PIPE, stdout=PIPE, text=True) as process:
        executor = Executor(process, tmp_path / "log", gpu="")
        executor.order("begin")
        before = executor.private_bytes()
        executor.order("take")
        assert executor.private_bytes() - before == pytest.approx(64 * MIB, abs=MIB)
        assert executor.file_bytes() == 0
        for order in ("share", "end"):  # a page that it shares with its child counts once
            executor.order(order)
            assert executor.private_bytes() - before == pytest.approx(64 * MIB, abs=2 * MIB)
        executor.order("park")
        assert executor.private_bytes() - before == pytest.approx(0, abs=MIB)
        assert executor.file_bytes() == 64 * MIB
        assert executor.device_bytes() is None
        executor.order("fork")
        (child,) = executor.family[1:]
        assert executor.kill(gone_s=0.1) is None
        assert not child.is_running()
        end(process)

"""Parts of `bench.gpu`: what is kept of one that is ended, which are repeated, and what the driver says."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from bench import canary, curve, gpu, pages, stack
from bench.agentic import PolicyRun
from bench.harness import part, report
from bench.harness.measures import driver
from bench.harness.models import write_model
from bench.harness.services import BenchError
from common.evaluation import Asked, EvaluationReport, packed
from marlaas.reporting.progress import Progress
from marlaas.task_file import read_task
from rollout_svc.engine.config import Tolerance
from tests.support.env.replicas import lives
from tests.support.paths import ROOT
from tests.support.waiting import eventually

OVERDUE = """
import subprocess, sys
from bench.harness import part
part.keep({"steps": 3})
with part.phase("measured"):
    subprocess.Popen(["setsid", "sleep", "60"])
    waited = [subprocess.Popen(["sleep", "60"]) for _ in range(2)]
    print("started", flush=True)
    waited[0].wait()
"""
MACHINE = {"cores": 2, "gpu": "H200", "versions": {"torch": "2"}}


async def test_a_part_that_exceeds_its_time_is_ended_with_all_its_processes_and_what_it_measured_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "part.jsonl"
    monkeypatch.setenv(part.FILE, str(notes))
    process = subprocess.Popen([sys.executable, "-c", OVERDUE], stdout=subprocess.PIPE, cwd=ROOT, start_new_session=True)
    monkeypatch.delenv(part.FILE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    everything = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
    assert len(everything) == 4
    assert gpu.ended(process, 0.1, notes, grace_s=1.0) is None
    await eventually(lambda: not any(lives(one.pid) for one in everything), 30)
    found, phases = part.read(notes, time.time() + 5)
    assert found == {"steps": 3}
    assert [one.name for one in phases] == ["measured"]
    assert phases[0].ended_s - phases[0].began_s > 5


PARTS_IN_PLACE = """
import sys
from bench import gpu
sys.executable = sys.argv[1]
gpu.main([*sys.argv[3:], "--small", "--work", sys.argv[2]])
"""


def started(folder: Path, script: str, *given: str) -> "subprocess.Popen[str]":
    """`bench.gpu` with these options, each of whose parts is the shell's `script`; its results are in `folder`, with all else."""
    (folder / "small").mkdir()
    (folder / "small" / "chat_template.jinja").touch()  # no model is made
    program = folder / "python"
    program.write_text(f'#!/bin/sh\ncase $1 in -m) {script};; *) exec {sys.executable} "$@";; esac\n')
    program.chmod(0o755)
    env = os.environ | {"BENCH_RESULTS": str(folder), "BENCH_COMMIT": "abc"}
    command = [sys.executable, "-c", PARTS_IN_PLACE, str(program), str(folder), *given]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


async def test_a_part_that_sigterm_ends_with_the_program_keeps_what_it_measured_and_is_repeated(tmp_path: Path) -> None:
    """`timeout` sends SIGTERM to `bench.gpu` alone. The next part does not start."""
    notes = tmp_path / "canary.jsonl"
    process = started(tmp_path, """echo '{"found": {"steps": 3}}' > $BENCH_PART; sleep 600""", "canary", "demo")
    await eventually(notes.exists, 120)
    process.terminate()
    assert process.wait(120) == 1
    assert not gpu.marked(notes)
    result = json.loads((tmp_path / "gpu-canary.json").read_text())
    assert (result["failed"], result["complete"], result["found"]) == ("ended by SIGTERM", False, {"steps": 3})
    assert not (tmp_path / "demo.jsonl").exists()
    assert not gpu.is_there(gpu.PARTS[0], {}, "abc", small=True, folders=[tmp_path])


def test_a_part_that_fails_is_a_result_and_the_next_one_runs(tmp_path: Path) -> None:
    """The first dies without a word, as of the kernel's lack of memory."""
    process = started(tmp_path, "case $2 in bench.canary) kill -9 $$;; esac", "canary", "demo")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    first, second = (json.loads((tmp_path / f"gpu-{name}.json").read_text()) for name in ("canary", "demo"))
    assert (first["failed"], first["complete"]) == ("ended with status -9 and said nothing", False)
    assert ("failed" in second, second["complete"]) == (False, True)
    assert "ended with status -9 and said nothing" in output


def test_no_part_starts_whose_end_could_be_too_late(tmp_path: Path) -> None:
    """It has its time, two signals' grace, and the driver's."""
    process = started(tmp_path, "true", "canary", "--limit", "10", "--within", "39.9")
    assert "canary: not started" in process.communicate(timeout=120)[0]


def test_a_part_that_ends_by_itself_gives_its_status(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], start_new_session=True)
    assert gpu.ended(process, 30.0, tmp_path / "none.jsonl") == 3


IN_ORDER = """
import pathlib, sys, time
from bench.harness import part
part.end_in_order()
try:
    with part.phase("measured"):
        print("started", flush=True)
        time.sleep(600)
finally:
    part.keep_logs(pathlib.Path(sys.argv[1]))
"""


def test_a_stack_s_program_whose_time_is_over_leaves_its_phases_and_keeps_its_logs(tmp_path: Path) -> None:
    notes, logs = tmp_path / "demo.jsonl", tmp_path / "stack" / "logs"
    logs.mkdir(parents=True)
    (logs / "rollout.log").write_text("no memory")
    command, env = [sys.executable, "-c", IN_ORDER, str(logs)], os.environ | {part.FILE: str(notes)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=env) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"started\n"
        process.terminate()
    _, ((name, began_s, ended_s),) = part.read(notes, 0.0)
    assert name == "measured" and ended_s >= began_s
    assert (tmp_path / "demo.logs" / "rollout.log").read_text() == "no memory"


def test_a_line_that_was_cut_off_is_left_out_and_later_results_replace_earlier_ones(tmp_path: Path) -> None:
    notes = tmp_path / "part.jsonl"
    lines = [
        {"found": {"a": 1, "b": 1}},
        {"phase": "start", "at_s": 1.0, "begins": True},
        {"phase": "start", "at_s": 3.0, "begins": False},
        {"found": {"a": 2}},
    ]
    notes.write_text("\n".join(map(json.dumps, lines)) + '\n{"found": {"a"')
    assert part.read(notes, 9.0) == ({"a": 2, "b": 1}, [part.Phase("start", 1.0, 3.0)])


@pytest.mark.parametrize(
    ("changes", "commit", "small", "expected"),
    [
        ({}, "abc", False, True),
        ({}, "abc", True, False),
        ({}, "def", False, False),
        ({}, "", False, False),
        ({"commit": "abc-dirty"}, "abc-dirty", False, False),
        ({"machine": MACHINE | {"gpu": "H100"}}, "abc", False, False),
    ],
)
def test_a_part_is_not_repeated_on_the_same_commit_and_machine(
    tmp_path: Path, changes: dict[str, object], commit: str, *, small: bool, expected: bool
) -> None:
    kept = {"commit": "abc", "small": False, "machine": MACHINE | {"load_before": 0.3}} | changes
    (tmp_path / "gpu-demo.json").write_text(json.dumps(kept))
    (demo,) = gpu.chosen("demo")
    assert gpu.is_there(demo, MACHINE, commit, small=small, folders=[tmp_path]) is expected


def test_a_family_names_its_parts_and_each_part_is_a_program(tmp_path: Path) -> None:
    assert [one.name for one in gpu.chosen("isolation")] == ["isolation-0", "isolation-1", "isolation-2"]
    assert [one.name for one in gpu.chosen("curve-8")] == ["curve-8"]
    assert len(set(gpu.NAMES)) == len(gpu.NAMES)
    assert gpu.arguments(["canary", "memory"]).parts == [*gpu.chosen("canary"), *gpu.chosen("memory")]
    with pytest.raises(SystemExit):
        gpu.arguments(["curve-3"])
    paths = dict.fromkeys(("model", "model_4b", "pools", "invariant", "work"), str(tmp_path))
    for one in gpu.PARTS:
        program = f"bench.{one.program} {one.on_gpu} {one.small}".format(**paths).split()[0]
        assert importlib.util.find_spec(program) is not None, one


def test_the_driver_is_asked_before_and_while_a_part_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase $* in\n*compute_cap*) echo '0, GPU-1, A, 100, 9.0, 1.2, [N/A]' ;;\n"
        "*memory.free*) echo '100, 70' ;;\n"
        "*) while :; do echo \"$(date '+%Y/%m/%d %H:%M:%S.%3N'), 50, 40\"; sleep 0.05; done ;;\nesac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert driver.described() == {"gpu": "A, 100 MiB", "driver": "1.2"}
    assert driver.used_mib() == 30.0
    watched, began_s = tmp_path / "watched.csv", time.time()
    with driver.sampled(watched):
        while watched.read_text().count("\n") < 3:
            time.sleep(0.05)
    phases = [part.Phase("measured", began_s - 1, time.time() + 1), part.Phase("stop", 0.0, 1.0)]
    assert driver.figures(watched, phases) == {"peak_mib": {"measured": 40.0}, "utilisation": {"measured": 0.5}}


def test_without_a_gpu_nothing_is_sampled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with driver.sampled(tmp_path / "watched.csv"):
        assert driver.described() is None
    assert driver.figures(tmp_path / "watched.csv", []) is None


def test_memory_that_stays_after_a_part_is_its_failure(tmp_path: Path) -> None:
    result = {"limit_s": 120.0, "left_mib": 500.0, "small": False, "found": {}}
    assert gpu.objection(0, tmp_path / "log", result) == "500 MiB of the device's memory are still in use"
    assert gpu.objection(None, tmp_path / "log", result) == "not done within 120 s"
    assert gpu.objection(0, tmp_path / "log", result | {"left_mib": 0.0}) is None


def test_without_git_the_commit_is_the_given_one_or_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("BENCH_COMMIT", raising=False)
    assert report.commit() == ""
    monkeypatch.setenv("BENCH_COMMIT", "abc")
    assert report.commit() == "abc"


def test_behind_a_tag_too_the_commit_is_its_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BENCH_COMMIT", raising=False)
    monkeypatch.setattr(report, "ROOT", tmp_path)
    (tmp_path / "file").write_text("text")
    by = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    for command in (["init", "-q"], ["add", "file"], [*by, "commit", "-qm", "first"], [*by, "tag", "-am", "first", "v1.0.0"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    assert re.fullmatch("[0-9a-f]{12}", report.commit())
    (tmp_path / "file").write_text("changed")
    assert re.fullmatch("[0-9a-f]{12}-dirty", report.commit())


def test_a_random_model_says_words_with_vowels_for_tokens_that_the_tiny_tokenizer_lacks(tmp_path: Path) -> None:
    import torch
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(write_model(gpu.SMALL, torch.float32, tmp_path / "model"))
    assert [tokenizer.decode([number]) for number in (1010, 1357)] == ["eaea", "eobd"]
    assert len(tokenizer) == gpu.SMALL["vocab_size"]
    assert tokenizer.encode("What is 2 + 3?") == AutoTokenizer.from_pretrained(ROOT / "models" / "tiny").encode("What is 2 + 3?")


def test_gain_is_over_the_prompts_that_all_tasks_have_answered_twice() -> None:
    found = stack.gain([[{0: 0.0, 1: 0.5}, {0: 1.0, 1: 0.5}], [{0: 0.0, 1: 0.0, 2: 0.0}, {0: 1.0, 1: 0.5}]])
    assert found is not None
    assert (found["mean"], found["prompts"]) == (0.625, 2)
    assert stack.gain([]) is None


def test_gain_is_until_the_last_version_in_which_every_task_was_evaluated() -> None:
    """A part ended by its time leaves tasks at different versions."""
    spec = read_task(stack.EXAMPLE / "compose.toml")
    asked = Asked(environment="compose", options="", weights="", seed=0, temperature=0.0)

    def task(name: str, *rewards: float) -> Progress:
        reports = {
            25 * place: EvaluationReport(version=25 * place, reward=reward, asked=asked, by_prompt=packed({0: reward}, 1))
            for place, reward in enumerate(rewards)
        }
        return Progress(name, spec.model_copy(update={"name": name}), evaluations={stack.HELD_OUT: reports} if reports else {})

    found = stack.gained([task("a", 0.0, 0.5, 1.0), task("b", 0.0, 0.5)])["held_out_gain"]
    assert (found["mean"], found["prompts"]) == (0.5, 1)
    assert stack.gained([task("a", 0.0, 0.5), task("b", 0.0)])["held_out_gain"] is None
    assert stack.gained([task("a", 0.0, 0.5), task("b")])["held_out_gain"] is None


@pytest.mark.parametrize(
    ("got_b", "wrong"),
    [
        (-2.03, []),
        (-2.2, ["above the tolerance: b"]),
        (-1.99, ["nearer to another's canary: b as a"]),
        (float("nan"), ["above the tolerance: b", "nearer to another's canary: b as a"]),
    ],
)
def test_adapters_that_the_tolerance_cannot_tell_apart_must_be_nearest_to_their_own_canaries(got_b: float, wrong: list[str]) -> None:
    """With random weights in bfloat16 small adapters differ by less than the tolerance: none is wrong for that."""
    expected = {name: np.full(95, value, np.float32) for name, value in (("a", -2.0), ("b", -2.05), ("c", -4.0))}
    got = expected | {"b": np.full(95, got_b, np.float32)}
    found = canary.compared(expected, got, expected, Tolerance(max=0.1, mean=0.1))
    assert found["wrong"] == [f"together, {one}" for one in wrong]
    assert (found["alike"], found["other"]) == (1, pytest.approx([0.05, 0.05], abs=1e-6))


def test_canaries_are_compared_in_batches_of_each_size() -> None:
    assert [canary.batch_sizes(adapters) for adapters in (1, 2, 6, 32)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8, 16, 32]]
    expected = {name: np.zeros(2, np.float32) for name in "abc"}
    assert canary.largest({"a": np.array([0.5, 0.0]), "b": np.array([0.25, -0.5])}, expected) == [0.5, 0.375]


def test_page_has_the_curve_that_ran_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(tasks: int, **changes: object) -> dict[str, object]:
        found = {"policy": "asynchronous", "tasks": tasks, "tokens_per_s": 1000 * tasks, "trained_tokens_per_s": 10, "steps": 3}
        found |= {"first_step_s": {"p50": 1.0}, "step_s": {"p50": 2.0, "p99": 3.0}, "finish_s": {"min": 4.0, "max": 5.0}}
        machine = {"gpu": "A, 100 MiB", "cores": 16, "processor": "x", "load_before": 1}
        of_part = {
            "commit": "abcdef0",
            "date": "d",
            "machine": machine,
            "small": False,
            "complete": True,
            "driver": {"utilisation": {"measured": 0.5}},
        }
        return of_part | {"found": found | {"time_in": {"held": 0.25}}} | changes

    runs = {"1": run(1), "8": run(8, complete=False), "16": run(16, small=True), "32": run(32, found={"steps": 0})}
    for name, one in runs.items():
        (tmp_path / f"gpu-curve-{name}.json").write_text(json.dumps(one))
    monkeypatch.setattr(pages, "RESULTS", tmp_path)
    (page,) = [text for path, text in pages.pages().items() if path.stem == "benchmarks"]
    table = page.partition("<!-- gpu-curve: made by bench.pages -->")[2].partition("<!-- end -->")[0]
    assert "abcdef0: A, 100 MiB, 16 cores" in table
    assert [line for line in table.splitlines() if line.startswith(("| 1 ", "| 8 ", "| 16 ", "| 32 "))] == [
        "| 1 | asynchronous | 1,000 | 10 | 50% | 3 | 1.0 | 2.00 / 3.00 | 4.0 – 5.0 | 25% |",
        "| 8 | asynchronous | 8,000 | 10 | 50% | 3 | 1.0 | 2.00 / 3.00 | 4.0 – 5.0 (cut off) | 25% |",
    ]


def test_a_run_without_a_step_is_no_measurement() -> None:
    with pytest.raises(BenchError, match="no step was trained within 60 s"):
        curve.figures(PolicyRun("asynchronous", 1, 0.0, {"a": 60.0}, frozenset({"a"}), [], [], 1, {}, 0.0))

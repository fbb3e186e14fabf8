"""The environment of a file: rows in an order of their own, parts, and graders, `python` in the sandbox."""

import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from common.blobs import Blobs
from common.bus import Bus
from common.errors import Unavailable
from common.fairness.fair_queue import Claimant
from common.messages import BlobRef, file_blob, file_id
from common.spec import EnvironmentSection
from env_svc.calls import Failed, OpenCall, Opened, Scored, StepCall
from env_svc.contract import Finish, Reply, WrongOptions
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.files import grading
from env_svc.files.environment import FileStore, RowFile, file_rows, permuted
from env_svc.files.grading import graded, program
from env_svc.sandboxes.current import use
from tests.support.env.sandboxes import KINDS, in_use, sandbox_of
from tests.support.graders import CHECK, MULTI, NEAR
from tests.support.scheduler.uploads import digest_of

ROWS = [{"messages": [{"role": "developer", "content": f"Say {n}."}], "answer": str(n)} for n in range(10)]
DATA = b"\n".join(json.dumps(row).encode() for row in ROWS)


@pytest.fixture
def rows(tmp_path: Path) -> RowFile:
    path = tmp_path / "rows"
    path.write_bytes(DATA)
    found = RowFile(path)
    assert not path.exists(), "nothing stays when the process ends"
    return found


async def grade(rows: RowFile, grader: dict[str, Any], text: str, row: int = 4) -> Finish:
    turn = await file_rows("file:x", rows, {"grader": grader}).step(row, Reply(text))
    assert isinstance(turn, Finish)
    return turn


@pytest.mark.parametrize("count", [1, 2, 3, 10, 1000])
def test_an_order_has_each_row_once_and_another_for_each_key(count: int) -> None:
    first = [permuted(place, count, "0:0") for place in range(count)]
    assert sorted(first) == list(range(count))
    assert count < 10 or first != [permuted(place, count, "1:0") for place in range(count)]


async def test_epochs_show_each_row_once(rows: RowFile) -> None:
    environment = file_rows("file:x", rows, {"grader": CHECK})
    shown = [await environment.open(index, 3) for index in range(20)]
    assert Counter(opening.state for opening in shown) == dict.fromkeys(range(10), 2)
    assert all(opening.messages[0].role == "system" and opening.messages[0].content == f"Say {opening.state}." for opening in shown)
    assert (await environment.open(4, 3)) == shown[4]


async def test_held_out_rows_are_never_trained_on(rows: RowFile) -> None:
    options = {"grader": CHECK, "held_out": 0.3}
    train, held_out = (file_rows("file:x", rows, {**options, "part": part}) for part in ("train", "held_out"))
    assert {(await train.open(index, 0)).state for index in range(40)} == set(range(7))
    assert {(await held_out.open(index, 0)).state for index in range(40)} == {7, 8, 9}


@pytest.mark.parametrize(
    ("operation", "text", "reward"),
    [("eq", "4", 1), ("eq", " 4", 0), ("ne", "5", 1), ("like", "it is 4.", 1), ("like", "it is 5.", 0), ("ilike", "IT IS 4", 1)],
)
async def test_string_check(rows: RowFile, operation: str, text: str, reward: float) -> None:
    assert await grade(rows, CHECK | {"operation": operation}, text) == Finish(reward, {"grader_errors": 0.0})


async def test_similarity_and_formulas(rows: RowFile) -> None:
    assert (await grade(rows, NEAR, "44")).reward == pytest.approx(2 / 3)
    assert (await grade(rows, NEAR | {"reference": "4" * 5_000}, "4" * 5_000)).reward == 1.0
    found = await grade(rows, MULTI, "44")
    assert found.reward == pytest.approx(0.2 * 2 / 3) and set(found.components) == {"exact", "near", "grader_errors"}
    failed = await grade(rows, MULTI | {"calculate_output": "1 / exact"}, "44")
    assert failed.reward == 0 and failed.components["grader_errors"] == 1
    json_check = CHECK | {"input": "{{sample.output_json.value}}"}
    assert (await grade(rows, json_check, '{"value": 4}')).reward == 1.0
    assert (await grade(rows, json_check, "4")).reward == 0.0


async def test_a_text_that_is_too_long_fails_its_grader(rows: RowFile) -> None:
    much = CHECK | {"input": "{{sample.output_text}}" * 32, "operation": "ne"}
    assert await grade(rows, much, "x" * 2_048) == Finish(1.0, {"grader_errors": 0.0}), "it is as long as it may be"
    assert await grade(rows, much, "x" * 2_049) == Finish(0.0, {"grader_errors": 1.0})
    both = MULTI | {"graders": {"exact": much, "near": NEAR | {"reference": "x"}}, "calculate_output": "exact + near"}
    assert (await grade(rows, both, "x" * 2_049)).components["grader_errors"] == 1.0


async def test_texts_that_would_hold_up_others_are_not_compared(rows: RowFile, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def similarity(given: str, reference: str) -> float:
        compared.append(len(given) * len(reference))
        return 1.0

    monkeypatch.setattr(grading, "similarity", similarity)
    twice = NEAR | {"reference": "{{sample.output_text}}"}
    side = math.isqrt(grading.MAX_CELLS)
    assert await grade(rows, twice, "x" * side) == Finish(1.0, {"grader_errors": 0.0})
    assert await grade(rows, twice, "x" * (side + 1)) == Finish(0.0, {"grader_errors": 1.0})
    assert compared == [side * side]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, "grader"),
        ({"grader": {"type": "score_model"}}, "'score_model' is not supported"),
        ({"grader": CHECK | {"reference": "{{item.solution}}"}}, "the row has no 'item.solution'"),
        ({"grader": CHECK, "part": "held_out"}, "no row of 10 is in the part 'held_out'"),
        ({"grader": CHECK, "held_out": 1.0}, "expected a share"),
        ({"grader": CHECK, "rows": 3}, "rows"),
        ({"grader": {"type": "python", "name": "p", "source": "def grade(sample, item): return 1"}}, "no sandbox"),
    ],
)
def test_wrong_options_are_named_before_a_task_begins(rows: RowFile, options: dict[str, Any], reason: str) -> None:
    use(None)
    with pytest.raises(WrongOptions, match=reason):
        file_rows("file:x", rows, options)


PYTHON = {"type": "python", "name": "p"}
GRADE = "def grade(sample, item):\n    return {}\n"


@pytest.fixture(params=KINDS)
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with in_use(sandbox_of(request.param, warm=1)):
        yield request.param


async def test_programs_grade_in_the_sandbox(rows: RowFile, sandbox: str) -> None:
    assert (await grade(rows, PYTHON | {"source": GRADE.format("0.5 * (sample['output_text'] == item['answer'])")}, "4")).reward == 0.5
    assert (await grade(rows, PYTHON | {"source": GRADE.format("sample['output_json']['a'] / 4")}, '{"a": 3}')).reward == 0.75
    for wrong in ("1 / 0", "'much'", "float('nan')", "item['nothing']"):
        found = await grade(rows, PYTHON | {"source": GRADE.format(wrong)}, "4")
        assert found == Finish(0.0, {"grader_errors": 1.0}), wrong


async def test_a_reply_is_data_to_a_grader(rows: RowFile, sandbox: str) -> None:
    forged = "'}, {}))\nprint('x', 1.0) #\n\x00\u2028"
    source = GRADE.format("float(sample['output_text'] == '4')")
    assert (await grade(rows, PYTHON | {"source": source}, forged)).reward == 0.0
    assert graded("ab 1.0\n", "cd") is None
    assert "\n" not in program("", {}, {"output_text": "a\nb"}, "m").split("grade(")[1].rstrip("\n")


async def stored(bus: Bus, tenant: str, data: bytes = DATA) -> str:
    digest = digest_of(data)
    await Blobs(bus).put(BlobRef(name=file_blob(tenant, digest), size_bytes=len(data), sha256=digest), data)
    return file_id(digest)


async def outcome(executor: EnvironmentExecutor, tenant: str, name: str, call: Any, **options: Any) -> Any:
    environment = EnvironmentSection(name=name, options={"grader": CHECK} | options)
    [found] = [one async for batch in executor.run(Claimant(tenant, "t"), environment, [call], 20.0) for _, one in batch]
    return found


@pytest.fixture
def files(bus: Bus, tmp_path: Path) -> Iterator[FileStore]:
    found = FileStore(Blobs(bus), tmp_path / "files")
    found.open()
    yield found
    found.close()


def held(folder: Path) -> int:
    """Files of the folder that this process has open, without a name."""
    found = Path("/proc/self/fd").iterdir()
    return sum(name.startswith(str(folder)) and name.endswith("(deleted)") for name in map(_target, found))


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


async def test_a_replica_fetches_a_tenants_file_once_and_no_other_tenants(
    bus: Bus, workers: Workers, files: FileStore, tmp_path: Path
) -> None:
    file = await stored(bus, "acme")
    executor = EnvironmentExecutor(workers, 20.0, files=files)
    opened = await outcome(executor, "acme", f"file:{file}", OpenCall(0, 0))
    assert isinstance(opened, Opened)
    scored = await outcome(executor, "acme", f"file:{file}", StepCall(0, opened.state, Reply(opened.messages[0].content[4:-1])))
    assert scored == Scored(1.0, {"grader_errors": 0.0}, scored.worked_s)
    await Blobs(bus).delete(file_blob("acme", digest_of(DATA)))
    assert isinstance(await outcome(executor, "acme", f"file:{file}", OpenCall(1, 0)), Opened), "it is on the disk"
    assert {path.name for path in (tmp_path / "files").rglob("*") if path.is_file()} == {"lock"}
    for tenant, name in (("globex", f"file:{file}"), ("acme", f"file:{file_id('0' * 64)}")):
        refused = await outcome(executor, tenant, name, OpenCall(0, 0))
        assert isinstance(refused, Failed) and "is not in the store" in refused.reason and not refused.is_infrastructure


async def test_files_used_long_ago_are_gone_from_the_disk_with_their_environments(
    bus: Bus, workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("env_svc.files.environment.MAX_HELD", 2)
    files = FileStore(Blobs(bus), tmp_path / "files")
    files.open()
    executor = EnvironmentExecutor(workers, 20.0, files=files)
    names = [await stored(bus, "acme", DATA + b"\n" * number) for number in range(5)]
    for name in names:
        for number, again in ((0, name), (1, name), (0, names[0])):
            opened = await outcome(executor, "acme", f"file:{again}", OpenCall(number, 0), held_out=number / 10)
            assert isinstance(opened, Opened)
    assert held(tmp_path / "files") == 2
    files.close()


async def test_what_a_killed_process_was_fetching_is_removed_at_the_next_start(bus: Bus, files: FileStore, tmp_path: Path) -> None:
    left = tmp_path / "files" / "4711-0"
    left.mkdir()
    (left / "0.part").write_bytes(DATA)
    [own] = [path for path in (tmp_path / "files").iterdir() if path.is_dir() and path != left]
    other = FileStore(Blobs(bus), tmp_path / "files")
    other.open()
    assert not left.exists() and own.exists(), "one that runs keeps its own"
    other.close()


async def test_without_a_folder_a_file_is_unavailable(bus: Bus, workers: Workers, tmp_path: Path) -> None:
    (tmp_path / "files").touch()
    files = FileStore(Blobs(bus), tmp_path / "files")
    files.open()
    with pytest.raises(Unavailable, match="no file can be kept"):
        await outcome(EnvironmentExecutor(workers, 20.0, files=files), "acme", f"file:{await stored(bus, 'acme')}", OpenCall(0, 0))


async def test_an_option_names_another_file_for_an_evaluation(bus: Bus, workers: Workers, files: FileStore) -> None:
    file, other = await stored(bus, "acme"), await stored(bus, "acme", DATA.split(b"\n")[7] + b"\n")
    executor = EnvironmentExecutor(workers, 20.0, files=files)
    opened = await outcome(executor, "acme", f"file:{file}", OpenCall(5, 0), file=other)
    assert isinstance(opened, Opened) and opened.messages[0].content == "Say 7."

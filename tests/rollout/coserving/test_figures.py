"""Counts that leave the engine's process through a file."""

import threading
from pathlib import Path

from rollout_svc.coserving.figures import RECORD, FigureFile, Figures, read


def test_last_record_is_read(tmp_path: Path) -> None:
    path = tmp_path / "figures" / "replica"
    assert read(path) is None
    file = FigureFile(path)
    assert read(path) is None
    file.write(Figures(steps=3.0, held=2.0))
    file.write(Figures(steps=4.0, goals_off=1.0))
    assert read(path) == Figures(steps=4.0, goals_off=1.0)


def test_restarted_engine_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "figures"
    FigureFile(path).write(Figures(steps=3.0))
    FigureFile(path)
    assert read(path) is None


def test_torn_record_is_none(tmp_path: Path) -> None:
    path = tmp_path / "figures"
    FigureFile(path).write(Figures(steps=3.0))
    written = path.read_bytes()
    path.write_bytes(b"\x09" + written[1:])
    assert read(path) is None
    path.write_bytes(written[: RECORD.size // 2])
    assert read(path) is None


def test_reader_never_sees_half_of_a_record(tmp_path: Path) -> None:
    path, done = tmp_path / "figures", threading.Event()
    file = FigureFile(path)

    def write() -> None:
        for number in range(5_000):
            file.write(Figures(*[float(number)] * (len(RECORD.unpack(bytes(RECORD.size))) - 2)))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = 0
    while not done.is_set():
        found = read(path)
        if found is not None:
            seen += 1
            assert len(set(vars(found).values())) == 1
    writer.join()
    assert seen > 0

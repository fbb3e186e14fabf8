"""deploy/backup.sh with a stand-in for Compose, which records its calls and fails where a test says so."""

import os
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import eventually

COMPOSE = """\
#!/usr/bin/env bash
packed() { local folder=$(mktemp -d); echo "$1" > "$folder/packed"; tar -C "$folder" -cf - packed; rm -r "$folder"; }
lossy() { if [[ $CUT == "$1" ]]; then head -c "$KEPT"; else cat; fi; }
echo "$*" >> calls
if [[ -n $FAILING && $* == *"$FAILING"* ]]; then echo "half of "; exit 7; fi
if [[ -n $HANGING && $* == *"$HANGING"* ]]; then sleep 100; fi
case "$*" in
  "ps --services") echo "$RUNNING" | tr ' ' '\\n' ;;
  *" pg_dump "*) echo "the database" | lossy "pg_dump" ;;
  *" pg_restore "*) grep -q "the database" ;;
  *" tar nats "*) packed "the streams" | lossy "tar nats" ;;
  *" tar init "*) packed "the keys" | lossy "tar init" ;;
esac
"""
SERVICES = "scheduler env trainer rollout trainer-gpu"
COMPLETE = {"postgres.dump": "the database\n", "nats.tar": "the streams\n", "keys.tar": "the keys\n"}
"""Files of a backup, and what is in them."""
STOPPED = [f"stop {SERVICES}", "stop nats"]
STARTED = ["start nats", f"start {SERVICES}"]


class Backup:
    """A folder with a backup of yesterday, and the script on its way to make one of today."""

    def __init__(
        self,
        folder: Path,
        *,
        failing: str = "",
        hanging: str = "",
        running: str = f"nats postgres {SERVICES}",
        cut: str = "",
        kept: int = 0,
        stderr: int = subprocess.PIPE,
    ) -> None:
        """`cut`: the call of whose output only `kept` bytes arrive."""
        self.into = folder / "backup"
        self.into.mkdir()
        (self.into / "postgres.dump").write_text("yesterday's")
        (self.into / "nats.tar").write_text("yesterday's")
        (self.into / "keys.tar").write_text("yesterday's")
        self._calls = folder / "calls"
        compose = folder / "compose"
        compose.write_text(COMPOSE.replace("calls", str(self._calls), 1))
        compose.chmod(0o755)
        settings = {"COMPOSE": str(compose), "FAILING": failing, "HANGING": hanging, "RUNNING": running, "CUT": cut, "KEPT": str(kept)}
        self.process = subprocess.Popen(
            [ROOT / "deploy" / "backup.sh", self.into],
            env={**os.environ, **settings}, stdout=subprocess.PIPE, stderr=stderr, text=True, start_new_session=True,
        )  # fmt: skip

    def ended(self) -> tuple[int, str, str]:
        """Exit status, stdout, stderr."""
        said, complained = self.process.communicate(timeout=60)
        return self.process.returncode, said, complained

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().splitlines() if self._calls.exists() else []

    @property
    def files(self) -> dict[str, str]:
        return {path.name: self._content(path) for path in self.into.iterdir()}

    def _content(self, path: Path) -> str:
        if not tarfile.is_tarfile(path):
            return path.read_text()
        with tarfile.open(path) as archive:
            packed = archive.extractfile("packed")
            assert packed is not None
            return packed.read().decode()

    @property
    def is_as_before(self) -> bool:
        return self.files == dict.fromkeys(("postgres.dump", "nats.tar", "keys.tar"), "yesterday's")


def test_services_pause_for_a_backup_and_resume(tmp_path: Path) -> None:
    backup = Backup(tmp_path)
    status, said, complained = backup.ended()
    assert (status, complained) == (0, "")
    assert said.startswith("backed up: ")
    assert backup.files == COMPLETE
    asked = [call for call in backup.calls if call.startswith(("stop", "start"))]
    assert asked == STOPPED + STARTED
    [read_back] = [number for number, call in enumerate(backup.calls) if " pg_restore " in call]
    assert backup.calls.index(STARTED[-1]) < read_back, "no service waits for it"


@pytest.mark.parametrize("failing", ["stop scheduler", "pg_dump", "stop nats", "tar nats", "tar init"])
def test_services_resume_where_a_backup_fails_and_half_a_backup_is_none(failing: str, tmp_path: Path) -> None:
    backup = Backup(tmp_path, failing=failing)
    status, said, complained = backup.ended()
    assert status == 7
    assert "backed up" not in said
    assert f"backup: it failed, for the reason above; {backup.into} holds no backup of this moment" in complained
    assert backup.calls[-2:] == STARTED
    assert backup.is_as_before


@pytest.mark.parametrize(("cut", "kept", "file"), [
    ("pg_dump", 0, "postgres.dump"),
    ("pg_dump", 5, "postgres.dump"),
    ("tar nats", 0, "nats.tar"),
    ("tar nats", 1024, "nats.tar"),
    ("tar init", 600, "keys.tar"),
])  # fmt: skip
def test_backup_whose_output_was_cut_off_is_none(cut: str, kept: int, file: str, tmp_path: Path) -> None:
    """Although each command succeeded. 1024 bytes are a whole file of an archive, whose end is missing."""
    backup = Backup(tmp_path, cut=cut, kept=kept)
    status, said, complained = backup.ended()
    assert status == 1
    assert "backed up" not in said
    assert f"backup: {backup.into / file} could not be read back whole; next: the same command again" in complained.splitlines()
    assert [call for call in backup.calls if call.startswith("start")] == STARTED
    assert backup.is_as_before


async def test_services_resume_where_a_backup_is_interrupted(tmp_path: Path) -> None:
    backup = Backup(tmp_path, hanging="pg_dump")
    await eventually(lambda: any("pg_dump" in call for call in backup.calls))
    os.killpg(backup.process.pid, signal.SIGTERM)  # as Ctrl-C does with SIGINT, which may be ignored where tests run in the background
    status, said, _ = backup.ended()
    assert status == 143
    assert "backed up" not in said
    assert backup.calls[-2:] == STARTED
    assert backup.is_as_before


async def test_backup_that_is_interrupted_as_it_is_read_back_is_none_and_restarts_nothing_twice(tmp_path: Path) -> None:
    backup = Backup(tmp_path, hanging="pg_restore")
    await eventually(lambda: any("pg_restore" in call for call in backup.calls))
    os.killpg(backup.process.pid, signal.SIGTERM)
    status, said, _ = backup.ended()
    assert (status, said) == (143, "")
    assert [call for call in backup.calls if call.startswith("start")] == STARTED
    assert backup.is_as_before


def test_services_resume_where_nobody_reads_the_messages(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    backup = Backup(tmp_path, failing="pg_dump", stderr=writing)
    os.close(writing)
    assert backup.ended()[0] != 0
    assert backup.calls[-2:] == STARTED
    assert backup.is_as_before


def test_services_that_do_not_restart_are_reported(tmp_path: Path) -> None:
    status, _, complained = Backup(tmp_path, failing="start scheduler").ended()
    assert status == 1
    assert complained == "backup: not everything that was stopped could be restarted; next: docker compose up -d\n"


def test_stores_are_saved_where_no_service_runs(tmp_path: Path) -> None:
    backup = Backup(tmp_path, running="nats postgres")
    status, said, complained = backup.ended()
    assert (status, complained) == (0, "")
    assert "backup: no service runs; the stores are saved as they are\nbacked up: " in said
    assert backup.files == COMPLETE
    asked = [call for call in backup.calls if call.startswith(("stop", "start"))]
    assert asked == ["stop nats", "start nats"]


def test_nothing_is_stopped_where_compose_does_not_answer(tmp_path: Path) -> None:
    backup = Backup(tmp_path, failing="ps --services")
    assert backup.ended()[0] == 7
    assert backup.calls == ["ps --services"]
    assert backup.is_as_before

"""Keys and passwords in the volumes of a deployment with containers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.access.credentials import read_credentials
from common.access.folder import open_folder
from common.access.services import Deployment
from common.passwords import read_passwords
from common.resilience.crashpoints import PREPARING
from marlaas.containers import SERVICES, Volumes, prepare
from marlaas.stack.state_files import StackError
from tests.support.paths import ROOT

DEPLOYMENT = Deployment(("tiny",), ("module", "own"))
KILLED = """
import os, sys
from pathlib import Path
from common.resilience import crashpoints
from tests.marlaas.containers.test_preparation import DEPLOYMENT, prepare, volumes_in
crashpoints.arm(sys.argv[2])
prepare(volumes_in(Path(sys.argv[1])), DEPLOYMENT)
"""


def volumes_in(root: Path) -> Volumes:
    """Empty volumes, unless they are there."""
    volumes = Volumes(root, os.getuid(), os.getuid())
    names = (
        "keys",
        "creds",
        "nats/jetstream",
        "postgres",
        "nats-access",
        "postgres-access",
        *(f"secrets/{name}" for name in ("migrate", *SERVICES)),
    )
    for name in names:
        (root / name).mkdir(parents=True, exist_ok=True)
    return volumes


def content(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def seeds_and_passwords(root: Path) -> dict[str, bytes]:
    """What never changes: a creds file repeats its token with each start's time."""
    return {name: text for name, text in content(root).items() if name.endswith((".seed", "pgpass"))}


def test_every_reader_gets_its_own_and_can_read_it_alone(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    assert prepare(volumes, DEPLOYMENT)
    for service in SERVICES:
        files = {path.name for path in volumes.secrets(service).iterdir()}
        assert files == ({"nats.creds", "pgpass"} if service == "scheduler" else {"nats.creds"})
        assert read_credentials(volumes.secrets(service) / "nats.creds").name == service
    everyone, scheduler = read_passwords(volumes.passwords), read_passwords(volumes.secrets("scheduler") / "pgpass")
    assert set(everyone) == {"marlaas", "marlaas_owner", "marlaas_app", "marlaas_reader"} and len(set(everyone.values())) == 4
    assert scheduler == {"marlaas_app": everyone["marlaas_app"]}
    shown = (volumes.nats_access / "nats.conf").read_text() + (volumes.postgres_access / "password.sql").read_text()
    assert not [secret for secret in everyone.values() if secret in shown]
    assert "-----BEGIN" not in shown
    for path in (volumes.keys, volumes.creds, volumes.secrets("migrate"), *map(volumes.secrets, SERVICES)):
        assert not [one for one in (path, *path.rglob("*")) if one.stat().st_mode & 0o077]


def test_second_start_changes_no_key_and_no_password(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    prepare(volumes, DEPLOYMENT)
    before = seeds_and_passwords(tmp_path)
    assert not prepare(volumes, DEPLOYMENT)
    assert seeds_and_passwords(tmp_path) == before


def test_password_whose_line_was_removed_is_made_anew_and_no_other(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    prepare(volumes, DEPLOYMENT)
    before, app = read_passwords(volumes.passwords), ":marlaas_app:"
    kept = [line for line in volumes.passwords.read_text().splitlines() if app not in line]
    volumes.passwords.write_text("".join(f"{line}\n" for line in kept))
    prepare(volumes, DEPLOYMENT)
    after = read_passwords(volumes.passwords)
    assert {role for role in after if after[role] != before.get(role)} == {"marlaas_app"}
    assert read_passwords(volumes.secrets("scheduler") / "pgpass") == {"marlaas_app": after["marlaas_app"]}


@pytest.mark.parametrize("point", PREPARING)
def test_start_that_was_killed_is_completed_by_the_next(tmp_path: Path, point: str) -> None:
    root = tmp_path / "volumes"
    root.mkdir()
    argv = [sys.executable, "-c", KILLED, str(root), f"{point}:1"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode != 0 and "Traceback" not in done.stderr, done
    before, volumes = seeds_and_passwords(root), volumes_in(root)
    prepare(volumes, DEPLOYMENT)
    after = seeds_and_passwords(root)
    assert before and {name: after[name] for name in before} == before
    complete = volumes_in(tmp_path / "undisturbed")
    prepare(complete, DEPLOYMENT)
    assert content(root).keys() == content(complete.root).keys()


def test_streams_of_other_keys_are_refused_and_given_to_new_ones_on_request(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    prepare(volumes, DEPLOYMENT)
    [store] = [volumes.nats_store / "jetstream" / open_folder(volumes.keys).services.public]
    store.mkdir(parents=True)
    (store / "messages").write_text("kept")
    before = content(tmp_path)
    with pytest.raises(StackError, match=r"the streams in .* belong to the keys in .*; to replace these, move that folder away first"):
        prepare(volumes, DEPLOYMENT, rekey=True)
    volumes.keys.rename(tmp_path / "stolen")
    volumes.keys.mkdir()
    lost = content(tmp_path)
    with pytest.raises(StackError, match="streams of other keys than those in the volume `keys`"):
        prepare(volumes, DEPLOYMENT)
    assert content(tmp_path) == lost

    assert prepare(volumes, DEPLOYMENT, rekey=True)
    [messages] = (volumes.nats_store / "jetstream").glob("A*/messages")
    assert messages.read_text() == "kept" and messages.parent.name == open_folder(volumes.keys).services.public != store.name
    after = content(tmp_path)
    kept = {name for name in after if name.startswith("secrets/") and after[name] == before[name]}
    assert kept == {"secrets/migrate/pgpass", "secrets/scheduler/pgpass"}
    assert not prepare(volumes, DEPLOYMENT)

"""Keys and passwords in the volumes of a deployment with containers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from common.access.credentials import read_credentials
from common.access.services import Deployment
from common.passwords import read_passwords
from common.resilience.crashpoints import PREPARING
from marlaas.containers.passwords import PASSWORD_SETTINGS, prepare_without_keys
from marlaas.containers.preparation import FROM_EXISTING, prepare
from marlaas.containers.volumes import SERVICES, Volumes
from marlaas.stack.state_files import StackError

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
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd=Path(__file__).parents[3])
    assert done.returncode != 0 and "Traceback" not in done.stderr, done
    before, volumes = seeds_and_passwords(root), volumes_in(root)
    prepare(volumes, DEPLOYMENT)
    after = seeds_and_passwords(root)
    assert before and {name: after[name] for name in before} == before
    complete = volumes_in(tmp_path / "undisturbed")
    prepare(complete, DEPLOYMENT)
    assert content(root).keys() == content(complete.root).keys()


def test_stores_of_a_deployment_without_keys_are_left_as_they_are(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    (volumes.nats_store / "jetstream" / "$G").mkdir(parents=True)
    (volumes.nats_store / "jetstream" / "$G" / "messages").write_text("kept")
    before = content(tmp_path)
    with pytest.raises(StackError, match=r"the volume `nats` holds the streams of a deployment without keys.*deploy/give-keys\.sh"):
        prepare(volumes, DEPLOYMENT)
    assert content(tmp_path) == before
    prepare(volumes, DEPLOYMENT, from_existing=True)
    [messages] = (volumes.nats_store / "jetstream").glob("A*/messages")
    assert messages.read_text() == "kept" and (volumes.keys / FROM_EXISTING).exists()
    assert not prepare(volumes, DEPLOYMENT)


def test_database_whose_passwords_are_not_there_is_refused(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    (volumes.postgres / "PG_VERSION").write_text("17")
    with pytest.raises(StackError, match=r"the volume `postgres` holds a database whose passwords.*deploy/give-keys\.sh"):
        prepare(volumes, DEPLOYMENT)
    assert list(content(tmp_path)) == ["postgres/PG_VERSION"]


def test_streams_of_other_keys_are_refused(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    (volumes.nats_store / "jetstream" / f"A{'B' * 55}").mkdir(parents=True)
    for from_existing in (False, True):
        with pytest.raises(StackError, match="streams of other keys than those in the volume `keys`"):
            prepare(volumes, DEPLOYMENT, from_existing=from_existing)
    assert content(tmp_path) == {}


@pytest.mark.parametrize("address", ["0.0.0.0:4222", "4222", "[::]:4222", "10.0.0.5:4222", "main-host:4222"])
def test_passwords_that_everybody_knows_are_refused_beyond_loopback(tmp_path: Path, address: str) -> None:
    good = dict.fromkeys(PASSWORD_SETTINGS, "b7Xq2")
    for name in PASSWORD_SETTINGS:
        for known in ("marlaas", "changeme", ""):
            with pytest.raises(StackError, match=f"everybody knows these passwords; set in .env: {name}$"):
                prepare_without_keys(volumes_in(tmp_path), {**good, name: known, "NATS_ADDRESS": address})
    assert content(tmp_path) == {}
    prepare_without_keys(volumes_in(tmp_path), {**good, "NATS_ADDRESS": address})


def test_passwords_that_everybody_knows_are_taken_on_loopback_alone(tmp_path: Path) -> None:
    for address in ("127.0.0.1:4222", "[::1]:4222", "localhost:4222"):
        prepare_without_keys(volumes_in(tmp_path), dict.fromkeys(PASSWORD_SETTINGS, "marlaas") | {"NATS_ADDRESS": address})


def test_streams_that_belong_to_keys_are_not_opened_by_a_password(tmp_path: Path) -> None:
    volumes = volumes_in(tmp_path)
    (volumes.nats_store / "jetstream" / f"A{'B' * 55}").mkdir(parents=True)
    with pytest.raises(StackError, match=r"streams that belong to keys; remove deploy/passwords/compose\.yml"):
        prepare_without_keys(volumes, {"NATS_ADDRESS": "127.0.0.1:4222"})

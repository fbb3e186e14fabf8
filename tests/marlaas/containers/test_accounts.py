"""The operator's key and the first tenant's: made once, whatever interrupts it, on real servers."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from common.access.credentials import read_credentials
from common.errors import Fatal
from common.resilience.crashpoints import OPERATORS
from marlaas.client import Client
from tests.marlaas.tenancy.commands import ARMED
from tests.support.keyed import Keyed
from tests.support.services import without_settings

POINTS = [point for point in OPERATORS if point in ("before_record", "before_creds", "before_push")]


def accounts(keyed: Keyed, database_url: str, creds: Path, *, tenant: str = "first", crash: str = "") -> subprocess.CompletedProcess[str]:
    """`marlaas containers accounts`. `crash`: point at which its process is killed."""
    env = without_settings()
    env |= {"MARLAAS_SCHEDULER_DATABASE_URL": database_url, "MARLAAS_NATS_URL": keyed.url, "MARLAAS_KEYS": str(keyed.keys.folder)}
    argv = [sys.executable, "-c", ARMED.format(f"{crash}:1" if crash else ""), "containers", "accounts"]
    return subprocess.run([*argv, "--to", str(creds), "--tenant", tenant], capture_output=True, text=True, timeout=120, env=env)


@pytest.mark.parametrize("crash", ["", *POINTS])
async def test_first_tenant_has_one_key_that_works(keyed: Keyed, database_url: str, tmp_path: Path, crash: str) -> None:
    creds = tmp_path / "out"
    creds.mkdir()
    if crash:
        killed = accounts(keyed, database_url, creds, crash=crash)
        assert killed.returncode != 0 and "Traceback" not in killed.stderr, killed
    done = accounts(keyed, database_url, creds)
    assert (done.returncode, done.stderr) == (0, "")
    assert "accounts were made for: first" in done.stdout
    key, admin = creds / "first.creds", keyed.keys.credentials("admin")
    assert f"--entrypoint cat marlaas {key} > first.creds" in done.stdout
    made = [read_credentials(path).public for path in (key, admin)]
    for path in (key, admin):
        async with Client.connect(keyed.url, creds=path):
            pass
    again = accounts(keyed, database_url, creds)
    assert again.returncode == 0 and "accounts were made" not in again.stdout
    assert [read_credentials(path).public for path in (key, admin)] == made
    assert not list((keyed.keys.folder / "pending").iterdir())


async def test_no_tenant_is_made_where_none_is_wanted_or_there_are_some(keyed: Keyed, database_url: str, tmp_path: Path) -> None:
    creds = tmp_path / "out"
    creds.mkdir()
    none = accounts(keyed, database_url, creds, tenant="")
    assert none.returncode == 0 and "accounts were made" not in none.stdout
    assert accounts(keyed, database_url, creds, tenant="first").returncode == 0
    other = accounts(keyed, database_url, creds, tenant="second")
    assert other.returncode == 0 and "accounts were made" not in other.stdout
    assert [path.name for path in creds.iterdir()] == ["first.creds"]


async def test_operators_key_whose_file_was_lost_is_replaced_and_refused(keyed: Keyed, database_url: str, tmp_path: Path) -> None:
    assert accounts(keyed, database_url, tmp_path).returncode == 0
    admin, lost = keyed.keys.credentials("admin"), tmp_path / "lost.creds"
    shutil.move(admin, lost)
    assert accounts(keyed, database_url, tmp_path).returncode == 0
    assert read_credentials(admin).public != read_credentials(lost).public
    async with Client.connect(keyed.url, creds=admin):
        pass
    with pytest.raises(Fatal, match="revoked"):
        async with Client.connect(keyed.url, creds=lost):
            pass


async def test_name_that_no_tenant_may_have_is_refused_in_a_sentence(keyed: Keyed, database_url: str, tmp_path: Path) -> None:
    refused = accounts(keyed, database_url, tmp_path, tenant="Acme Corp")
    assert refused.returncode == 1
    assert "'Acme Corp' cannot be a tenant's name" in refused.stderr and "Traceback" not in refused.stderr

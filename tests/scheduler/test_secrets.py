"""A password reaches a process by a file, and leaves it by no log, error or traceback."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from common.errors import Fatal
from common.runtime.settings import describe
from marlaas.stack import servers
from scheduler_svc.settings import SchedulerSettings
from tests.support.waiting import eventually

CANARY = "canary-5f2c"


def test_setting_in_a_file_is_read_without_the_newline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SCHEDULER_DATABASE_URL", "SCHEDULER_DATABASE_ADMIN_URL"):
        (tmp_path / name).write_text(f"x://user:{CANARY}@{name.lower()}\n")
        monkeypatch.setenv(f"MARLAAS_{name}_FILE", str(tmp_path / name))
    settings = SchedulerSettings.read()
    assert settings.database_url == f"x://user:{CANARY}@scheduler_database_url"
    assert settings.database_admin_url == f"x://user:{CANARY}@scheduler_database_admin_url"
    assert CANARY not in repr(settings)
    assert "MARLAAS_SCHEDULER_DATABASE_URL_FILE" in describe(SchedulerSettings)


def test_file_and_value_together_or_no_file_is_a_line_that_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLAAS_SCHEDULER_DATABASE_URL_FILE", str(tmp_path / "absent"))
    with pytest.raises(Fatal, match=r"MARLAAS_SCHEDULER_DATABASE_URL_FILE: .*absent cannot be read: No such file"):
        SchedulerSettings.read()
    monkeypatch.setenv("MARLAAS_SCHEDULER_DATABASE_URL", f"postgresql://x:{CANARY}@h/d")
    with pytest.raises(Fatal, match="MARLAAS_SCHEDULER_DATABASE_URL_FILE and MARLAAS_SCHEDULER_DATABASE_URL are both given") as raised:
        SchedulerSettings.read()
    assert CANARY not in str(raised.value)
    monkeypatch.setenv("MARLAAS_SCHEDULER_TICK_S_FILE", "x")
    with pytest.raises(Fatal, match="MARLAAS_SCHEDULER_TICK_S_FILE is not a setting"):
        SchedulerSettings.read()


@pytest.mark.parametrize(
    ("module", "address"),
    [
        ("scheduler_svc.migrate", "postgresql+psycopg://marlaas_app:{canary}@127.0.0.1:{port}/absent"),
        ("scheduler_svc.migrate", "postgresql+psycopg://marlaas_app:{canary}@127.0.0.1:{port}/absent?no_such_option=1"),
        ("scheduler_svc.migrate", "nonsense:{canary}"),
        ("scheduler_svc.migrate", "mysql://marlaas:{canary}@127.0.0.1/x"),
        ("scheduler_svc.tenant_access", "postgresql+psycopg://marlaas_app:{canary}@127.0.0.1:{port}/absent"),
    ],
)
async def test_password_is_in_no_output_of_a_process_that_fails(module: str, address: str, postgres_port: int, tmp_path: Path) -> None:
    """Refused, misspelt, or of another server: what is printed until the process ends or is ended, tracebacks included."""
    (tmp_path / "url").write_text(address.format(canary=CANARY, port=postgres_port))
    env = os.environ | {"MARLAAS_SCHEDULER_DATABASE_URL_FILE": str(tmp_path / "url")}
    arguments = ["list"] if module.endswith("access") else []
    log = tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", module, *arguments], env=env, stdout=output, stderr=output)
    await eventually(lambda: log.stat().st_size or process.poll() is not None)
    with suppress(subprocess.TimeoutExpired):
        process.wait(6)  # what it says next
    process.kill()
    process.wait()
    out = log.read_text()
    assert out.strip()
    assert CANARY not in out


def test_traceback_in_a_log_shows_no_variables() -> None:
    program = f"""
import structlog
from common.runtime.logs import configure_logs
configure_logs("x", "y", "info")
def fail(url):
    raise ValueError("no such thing")
try:
    fail("postgresql://x:{CANARY}@h/d")
except ValueError:
    structlog.get_logger().exception("crashed")
"""
    done = subprocess.run([sys.executable, "-"], input=program, capture_output=True, text=True, timeout=60)
    assert '"exc_value": "no such thing"' in done.stdout
    assert CANARY not in done.stdout + done.stderr


def test_addresses_of_the_stack_hold_no_password(tmp_path: Path) -> None:
    """They are in plan.json, stack.json and the environment of processes."""
    from marlaas.stack.control import make_plan

    plan = make_plan(tmp_path, Path("pools.toml"))
    addresses = [value for name, value in plan.prepare_env.items() if "DATABASE" in name]
    assert len(addresses) == 3
    assert all(f"@{servers.HOST}:" in address and address.endswith("passfile=" + str(tmp_path / "secrets/pgpass")) for address in addresses)

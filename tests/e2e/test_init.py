"""A stack whose signing keys were stolen gets new ones: a running task continues, and no key of before opens anything."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from common.bus import Bus
from common.errors import Fatal
from marlaas.client import Client
from marlaas.stack.state_files import running_stack
from tests.support.services import without_settings
from tests.support.waiting import eventually

STEPS = 60
TASK = f"""
name = "letters"
tenant = "acme"
pool = "tiny"
steps = {STEPS}
environment = {{ name = "reasoning_gym:letter_counting", options = {{ min_words = 1, max_words = 2 }} }}
algorithm = {{ group_size = 4, groups_per_step = 2 }}
lora = {{ rank = 4, alpha = 8 }}
sampling = {{ max_tokens = 16 }}
"""


@pytest.mark.acceptance
@pytest.mark.timeout(900)
async def test_running_task_of_a_stack_whose_keys_were_stolen_continues_with_new_ones(data: Path, tmp_path: Path) -> None:
    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        bare = without_settings()
        argv = [str(Path(sys.executable).parent / "marlaas"), *arguments, "--data", str(data)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=400, cwd=tmp_path, env=bare)

    def run(*arguments: str) -> str:
        done = command(*arguments)
        assert done.returncode == 0, (arguments, done)
        return done.stdout

    def version() -> int:
        return int(run("psql", "-c", "SELECT 'version ' || version FROM tasks").rpartition("version ")[2].split()[0])

    (tmp_path / "task.toml").write_text(TASK)
    run("up")
    run("tenants", "create", "acme")
    run("keys", "create", "acme", "laptop", "--role", "owner", "--to", "old.creds")
    http = run("keys", "create", "acme", "web", "--http").strip()
    task = run("submit", "task.toml").split()[-1]
    await eventually(lambda: version() >= 2)
    running = command("init", "--rekey")
    assert (running.returncode, running.stderr) == (1, f"marlaas: a stack runs on {data}; next: marlaas down\n")
    run("down")
    stolen = tmp_path / "stolen"
    (data / "keys").rename(stolen)
    assert "`marlaas init --rekey` makes new keys" in command("up").stderr

    run("init", "--rekey")
    run("up")
    assert 2 <= version() < STEPS, "it must still have steps to go"
    stack = running_stack(data)
    for name in ("operator", "scheduler", "system"):
        with pytest.raises(Fatal, match="refuses"):
            await Bus.connect(stack.nats_url, name, creds=stolen / "creds" / f"{name}.creds")
    with pytest.raises(Fatal, match="refuses"):
        async with Client.connect(stack.nats_url, creds=tmp_path / "old.creds"):
            pass
    refused = httpx.get(f"{stack.gateway.url}/v1/tasks", headers={"Authorization": f"Bearer {http}"})
    assert refused.status_code == 401

    assert "updated in NATS: acme" in run("tenants", "push", "--new-accounts", "--delete-others")
    assert "agrees with PostgreSQL" in run("tenants", "push", "--new-accounts", "--delete-others")
    run("keys", "create", "acme", "laptop", "--role", "owner", "--to", "new.creds")
    async with Client.connect(stack.nats_url, creds=tmp_path / "new.creds") as tenant:
        assert (await tenant.wait(task)).state == "finished"
    with pytest.raises(Fatal, match="refuses"):
        async with Client.connect(stack.nats_url, creds=tmp_path / "old.creds"):
            pass
    assert version() == STEPS
    run("pull", task, "--to", "adapter")
    run("doctor")  # exit status 0: it finds nothing
    run("down")

"""Rules about keys, on a server that wants them: sound ones are silent, each violation is reported, and each mutant is caught."""

import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from common.access.claims import deletion_token
from common.access.folder import SYSTEM
from common.bus import Bus
from scheduler_svc.base.database import Database
from scheduler_svc.doctor import key_rules
from scheduler_svc.doctor.key_rules import ACCOUNTS, READABLE, REVOKED
from scheduler_svc.doctor.violation import Violation
from tests.scheduler.doctor.code_mutants import RULES_OF, loaded, mutants_of_module
from tests.support.keyed import TENANTS, Keyed, keyed_server
from tests.support.scheduler.statements import Queried
from tests.support.services import without_settings

KEY = "U" + "A" * 55
RULES = {"examine_folder": (READABLE,), "read_accounts": (ACCOUNTS, REVOKED), "examine_accounts": (ACCOUNTS, REVOKED)}


@dataclass(frozen=True)
class World(Queried):
    keyed: Keyed
    database: Database
    system: Bus

    async def broken(self) -> set[str]:
        return {violation.rule for violation in await self.violations(key_rules) or ()}

    async def violations(self, rules: ModuleType) -> set[Violation] | None:
        """None when the rules raise."""
        signing = self.keyed.keys
        try:
            async with self.database.transaction() as tx:
                recorded = await rules.read_accounts(tx.connection, signing.admin.public)
            found = rules.examine_folder(signing.folder) + await rules.examine_accounts(signing, self.system, recorded)
        except Exception:  # of a mutant
            return None
        return set(found)


@asynccontextmanager
async def sound_world(folder: Path, database_url: str) -> AsyncGenerator[World]:
    """Two tenants: one has a revoked key and a valid one, the other is suspended; and one without an account, and a deleted one."""
    async with keyed_server(folder) as keyed, await Database.connect(database_url) as database, await keyed.connect(SYSTEM) as system:
        world = World(keyed, database, system)
        for name in TENANTS:
            account = keyed.keys.tenant(name).public
            await world.execute(f"INSERT INTO tenants (id, account) VALUES ('{name}', '{account}')")
        await world.execute("INSERT INTO tenants (id) VALUES ('initech')")
        await world.execute(f"INSERT INTO tenants (id, account, deleted_by) VALUES ('gone', 'A{'C' * 55}', 1)")
        valid = "U" + "B" * 55
        await world.execute(
            "INSERT INTO keys (key, tenant, name, role, revoked_at) VALUES "
            f"('{KEY}', 'acme', 'old', 'member', now()), ('{valid}', 'acme', 'new', 'member', NULL)"
        )
        await world.execute("UPDATE tenants SET suspended_at = now() WHERE id = 'globex'")
        await keyed.revoke("acme", KEY)
        await keyed.revoke("globex")
        (keyed.keys.folder / "nats.conf").touch(0o644)  # what NATS must know, and nothing secret
        yield world


Change = Callable[[World], Awaitable[None]]


async def let_others_read_a_seed(world: World) -> None:
    (world.keyed.keys.folder / "tenants" / "acme.seed").chmod(0o640)


async def let_others_enter_the_folder(world: World) -> None:
    world.keyed.keys.folder.chmod(0o701)


async def make_an_account_that_is_not_recorded(world: World) -> None:
    await world.keyed.push("stranger")


async def keep_the_account_of_a_deleted_tenant(world: World) -> None:
    await world.execute("UPDATE tenants SET deleted_by = 7 WHERE id = 'acme'")


async def make_nats_forget_a_tenant(world: World) -> None:
    keys = world.keyed.keys
    await world.system.accounts.delete(deletion_token(keys.operator, [keys.tenant("globex").public], int(time.time())))


async def revoke_in_the_table_only(world: World) -> None:
    await world.execute("UPDATE keys SET revoked_at = now() WHERE name = 'new'")


async def revoke_an_operators_key_in_the_table_only(world: World) -> None:
    await world.execute(f"INSERT INTO keys (key, name, role, revoked_at) VALUES ('U{'D' * 55}', 'alice', 'admin', now())")


async def end_a_suspension_in_the_table_only(world: World) -> None:
    await world.execute("UPDATE tenants SET suspended_at = NULL WHERE id = 'globex'")


async def leave_a_valid_key_refused(world: World) -> None:
    await world.execute(f"UPDATE keys SET revoked_at = NULL WHERE key = '{KEY}'")


VIOLATIONS: list[tuple[str, Change]] = [
    (READABLE, let_others_read_a_seed),
    (READABLE, let_others_enter_the_folder),
    (ACCOUNTS, make_an_account_that_is_not_recorded),
    (ACCOUNTS, make_nats_forget_a_tenant),
    (REVOKED, revoke_in_the_table_only),
    (REVOKED, revoke_an_operators_key_in_the_table_only),
    (REVOKED, end_a_suspension_in_the_table_only),
    (REVOKED, leave_a_valid_key_refused),
    (ACCOUNTS, keep_the_account_of_a_deleted_tenant),
]


async def test_sound_keys_violate_no_rule(tmp_path: Path, database_url: str) -> None:
    async with sound_world(tmp_path, database_url) as world:
        assert await world.broken() == set()


@pytest.mark.parametrize(("rule", "change"), VIOLATIONS, ids=[change.__name__ for _, change in VIOLATIONS])
async def test_violation_is_reported(rule: str, change: Change, tmp_path: Path, database_url: str) -> None:
    async with sound_world(tmp_path, database_url) as world:
        await change(world)
        assert await world.broken() == {rule}


async def test_every_mutant_is_caught(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for function, rules in RULES.items():
        monkeypatch.setitem(RULES_OF, function, rules)
    made = [(mutant, loaded(key_rules, mutant.source)) for mutant in mutants_of_module(key_rules)]
    assert {mutant.rule for mutant, _ in made} == {*RULES}
    async with sound_world(tmp_path / "sound", database_url) as world:
        left = [(mutant, module) for mutant, module in made if await world.violations(module) == set()]
        expected: set[Violation] | None = None
        for _, change in VIOLATIONS:  # one after the other; the last hides what is wrong about its tenant
            await change(world)
            expected = await world.violations(key_rules)
            left = [(mutant, module) for mutant, module in left if await world.violations(module) == expected]
    assert expected is not None
    assert {violation.rule for violation in expected} == {READABLE, ACCOUNTS, REVOKED}
    assert [mutant.change for mutant, _ in left] == []


async def test_process_examines_the_folder_that_it_is_given(tmp_path: Path, database_url: str) -> None:
    async with sound_world(tmp_path, database_url) as world:
        keys = world.keyed.keys
        async with await world.keyed.connect("scheduler") as scheduler:
            await scheduler.declare()
            await scheduler.own_jobs.declare([*TENANTS, "gone"])

        def doctor() -> tuple[int, str]:
            env = without_settings()
            env |= {"MARLAAS_NATS_URL": world.keyed.url, "MARLAAS_SCHEDULER_DATABASE_URL": database_url}
            env |= {"MARLAAS_NATS_CREDS": str(keys.credentials("operator"))}
            argv = [sys.executable, "-m", "scheduler_svc.doctor", "--keys", str(keys.folder)]
            done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=100, check=False)
            return done.returncode, done.stdout + done.stderr

        assert doctor()[0] == 0
        await let_others_read_a_seed(world)
        status, printed = doctor()
        assert status == 1
        assert f"BROKEN    {READABLE}" in printed
        assert ACCOUNTS not in printed, "keys that others can read are not used"

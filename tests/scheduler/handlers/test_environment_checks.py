"""Checks of environments, of which a tenant has a few at once."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from common import streams
from common.bus import Bus, Delivery, Outgoing
from common.messages import CheckEnvironment, DeadLetter, EnvironmentChecked
from common.spec import EnvironmentSection
from scheduler_svc.training.environment_checks import CHECKS_PER_TENANT
from tests.support.scheduler.canaries import CANARY
from tests.support.scheduler.stages import Stages, running_world, spec
from tests.support.waiting import eventually, eventually_equals

MANY = 15


@dataclass
class Gated(Stages):
    """Checks of the tenant acme wait for the gate."""

    gate: asyncio.Event = field(default_factory=asyncio.Event)
    now: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """Tasks that are checked, by tenant; a check that NATS delivers twice to a busy machine is one."""
    most: Counter[str] = field(default_factory=Counter[str])
    """Maximum tasks checked at once, by tenant."""

    async def check(self, delivery: Delivery) -> AsyncIterator[Outgoing]:
        asked = delivery.read(CheckEnvironment)
        tenant = asked.tenant
        self.now[tenant].add(asked.task)
        self.most[tenant] = max(self.most[tenant], len(self.now[tenant]))
        if tenant == "acme":
            await self.gate.wait()
        async for out in super().check(delivery):
            yield out
        self.now[tenant].discard(asked.task)


async def test_slow_checks_of_one_tenant_hold_up_no_others(bus: Bus, database_url: str) -> None:
    stages = Gated(trains=False)
    async with running_world(bus, database_url, stages) as world:
        await world.run("first", spec(tenant="globex"), until="accepted")  # from here on the scheduler knows the replica
        for number in range(MANY):
            await world.submit(f"acme-{number}")
        await world.rows_become("SELECT count(*) FROM tasks WHERE tenant = 'acme'", [(MANY,)])
        await eventually(lambda: len(stages.now["acme"]) == CHECKS_PER_TENANT)
        for number in range(6):
            await world.run(f"globex-{number}", spec(tenant="globex"), until="accepted")
        waiting = f"waiting while {CHECKS_PER_TENANT} other tasks of its tenant are checked"
        await world.rows_become(
            "SELECT reason, count(*) FROM tasks WHERE state = 'submitted' GROUP BY 1 ORDER BY 1",
            [("", CHECKS_PER_TENANT), (waiting, MANY - CHECKS_PER_TENANT)],
        )
        stages.gate.set()
        await world.rows_become("SELECT count(*) FROM tasks WHERE tenant = 'acme' AND state = 'running'", [(MANY,)])
        assert stages.most["acme"] == CHECKS_PER_TENANT
        assert await world.rows("SELECT count(*) FROM tasks WHERE reason <> ''") == [(0,)]


async def test_a_rejected_task_is_in_the_audit_without_the_objection(bus: Bus, database_url: str) -> None:
    """Also where the answer comes twice, or the check could not be handled."""
    stages = Gated(objection=f"no option '{CANARY}'", trains=False)
    async with running_world(bus, database_url, stages) as world:
        await world.run("theirs", spec(tenant="globex"), until="rejected")
        answer = EnvironmentChecked(tenant="globex", task="theirs", objection=CANARY)
        await bus.publish(Outgoing(streams.checked("theirs"), answer, "once more"))
        await world.submit("held")
        await eventually(lambda: stages.now["acme"])
        environment = EnvironmentSection(name="toy")
        check = CheckEnvironment(tenant="acme", task="held", family="toy", environment=environment, seed=0, weight=1.0, by_operator=True)
        subject = streams.check("toy", "held")
        letter = DeadLetter(stage="check", subject=subject, reason=CANARY, attempts=1, headers={}, body=check.encode(), sequence=1)
        await bus.publish(Outgoing(streams.failed("check", "held"), letter, "letter"))
        await world.event("held", "rejected")
        rejected = "SELECT tenant, key, via, verb, target, reason, detail FROM audit WHERE outcome = 'rejected' ORDER BY id"
        expected = [
            ("globex", "", "scheduler", "submit", "theirs", "environment", {}),
            ("acme", "", "scheduler", "submit", "held", "malformed", {}),
        ]
        await eventually_equals(lambda: world.rows(rejected), expected)
        assert await world.rows(f"SELECT id FROM audit a WHERE to_jsonb(a)::text ~ '{CANARY}'") == []
        stages.gate.set()


async def test_task_with_tools_is_rejected_where_the_pools_template_takes_no_answers(bus: Bus, database_url: str) -> None:
    stages = Stages(has_tools=True, trains=False)
    async with running_world(bus, database_url, stages) as world:
        await world.run("unknown", until="accepted")
        world.rollout = world.rollout.model_copy(update={"takes_answers": False})
        await eventually(lambda: any(one.takes_answers is False for one in world.scheduler._replicas.reports))
        reasons = (await world.run("refused", until="rejected"))["reasons"]
        assert reasons == [
            "environment: it has tools, and the chat template of pool 'tiny' takes no answers of tools; choose another pool, or list none"
        ]
        stages.has_tools = False
        await world.run("without", until="accepted")

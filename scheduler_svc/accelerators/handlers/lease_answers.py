"""Handles executors' answers to orders: that they have woken or parked, or could not, and that a new process began."""

from collections.abc import Sequence

from common.bus import Delivery
from common.messages import LeaseDone
from scheduler_svc.accelerators.answers import executor_answered
from scheduler_svc.base.context import HandlerContext


async def handle_lease_answers(context: HandlerContext, deliveries: Sequence[Delivery]) -> None:
    answers = [delivery.read(LeaseDone) for delivery in deliveries]
    async with context.transaction() as tx:
        for done in sorted(answers, key=lambda one: (one.accelerator, one.epoch, one.at_s)):  # accelerators are locked in one order
            await executor_answered(tx, context.deployed, done, context.bus.clock.now_s())
    context.wake_slices()

"""Verbs of the command line, run against a gateway."""

from collections.abc import Awaitable, Callable

from tests.support.marlaas.command import Done

TASK = """\
name = "sums"
tenant = "acme"
pool = "tiny"
steps = 3
environment.name = "toy"
algorithm = { group_size = 2, groups_per_step = 2, max_staleness = 1 }
"""
Run = Callable[..., Awaitable[Done]]


async def out(done: Awaitable[Done]) -> str:
    result = await done
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout

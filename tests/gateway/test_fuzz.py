"""Requests that schemathesis makes from the OpenAPI document, with a key of the owner and one of another tenant."""

import asyncio

import pytest

from tests.gateway.fuzzing import fuzz
from tests.support.gateway.deltas import Part, Source, deltas
from tests.support.gateway.entering import with_keys
from tests.support.gateway.serving import gateway
from tests.support.keyed import Keyed
from tests.support.scheduler.stages import World, spec

CASES = 120
"""The first of each phase; 26,000 were made of a whole stack once (docs/benchmarks.md)."""

KNOWN = {"tenant": "acme", "task": "sums-1", "job": "sums-1", "version": "1", "model": "sums-1@1"}
"""Another tenant is refused all of them."""


@pytest.mark.slow
@pytest.mark.parametrize("who", ["owner", "foreign"])
async def test_answers_are_what_the_document_says(keyed: Keyed, keyed_world: World, who: str) -> None:
    async with with_keys(keyed) as (made, keys):
        await keyed_world.run("sums-1", spec())
        async with gateway(made.bus, keyed.url, access=made.access, sampler=Source(lambda _: deltas([Part("a"), Part("b")]))) as address:
            found = await asyncio.to_thread(fuzz, address, keys.valid[who], KNOWN, cases=CASES, examples=1, coverage=False)

    assert found.cases >= CASES
    assert found.failures == []
    assert found.server_errors == 0

"""Names of base models are resolved without a question, unless a tenant has given the name to a version."""

from types import SimpleNamespace
from typing import cast

import pytest

from common.bus import Bus
from common.client_api.asking import Door
from common.messages import AdapterRef, BlobRef, Canary, KnownAlias, PoolOffer
from common.streams import ALIASES_BUCKET
from gateway_svc.openai.models import BaseModels, resolve
from gateway_svc.problems import Problem
from gateway_svc.serving.pools import Offers
from tests.support.waiting import at_work, eventually

BLOB = BlobRef(name="a.v1.adapter", size_bytes=1, sha256="0" * 64)
ADAPTER = AdapterRef(task="a", version=1, rank=4, blob=BLOB, canary=Canary(ids=b"", logprobs=b""))


def alias(tenant: str, name: str) -> KnownAlias:
    return KnownAlias(tenant=tenant, name=name, pool="tiny", adapter=ADAPTER, changed_s=1.0)


class Asked(Exception):
    """The scheduler is asked."""


def doors(tenant: str | None) -> Door:
    async def ask(*_: object, **__: object) -> None:
        raise Asked

    return cast(Door, SimpleNamespace(tenant=tenant, ask=ask))


async def test_base_models_are_known_but_for_names_that_a_tenant_has_given(bus: Bus) -> None:
    offers = Offers()
    bases = BaseModels(bus, offers)
    offers.update([PoolOffer.model_construct(name="tiny", serves=True)])
    assert not bases.has("acme", "tiny"), "aliases are not read yet"
    async with at_work(bases.run()):
        await eventually(lambda: bases.has("acme", "tiny"))
        found = await resolve(doors("acme"), "tiny", bases)
        assert (found.model, found.pool, found.adapter) == ("tiny", "tiny", None)
        assert not bases.has("acme", "other") and not bases.has(None, "tiny")

        await bus.kv.put(ALIASES_BUCKET, "acme.tiny", alias("acme", "tiny"))
        await eventually(lambda: not bases.has("acme", "tiny"))
        assert bases.has("globex", "tiny")
        with pytest.raises(Asked):
            await resolve(doors("acme"), "tiny", bases)

        await bus.kv.delete(ALIASES_BUCKET, "acme.tiny")
        await eventually(lambda: bases.has("acme", "tiny"))


def test_pool_that_is_gone_is_refused_with_those_that_serve() -> None:
    offers = Offers()
    offers.check("gone")  # nothing is known yet
    offers.update([PoolOffer.model_construct(name="tiny", serves=True)])
    offers.check("tiny")
    with pytest.raises(Problem, match=r"any more.*: tiny") as caught:
        offers.check("gone")
    assert (caught.value.status, caught.value.code) == (409, "pool_without_serving")

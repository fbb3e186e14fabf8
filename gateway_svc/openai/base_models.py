"""Names that mean a base model, as the gateway knows by itself: without a question to the scheduler before each request."""

from common.bus import Bus, FollowedBucket
from common.messages import KnownAlias
from common.messages.tenancy.aliases import alias_key
from common.streams import ALIASES_BUCKET
from gateway_svc.serving.offers import Offers


class BaseModels:
    """Pools that are offered, but for names that a tenant has given to a version. `run` must run."""

    def __init__(self, bus: Bus, offers: Offers) -> None:
        self._offers = offers
        self._aliases = FollowedBucket(bus, ALIASES_BUCKET, KnownAlias)

    async def run(self) -> None:
        """Until cancelled."""
        await self._aliases.follow()

    def has(self, tenant: str | None, name: str) -> bool:
        """Whether the name surely means the pool's base model; False: the scheduler must be asked."""
        if tenant is None or not self._aliases.is_current:
            return False
        return self._offers.has(name) and alias_key(tenant, name) not in self._aliases.known

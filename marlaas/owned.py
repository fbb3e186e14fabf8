"""Owned: what a tenant has beside tasks, by whatever carries it."""

from dataclasses import dataclass

from common.door.protocol import AnyDoor
from common.door.tenancy.aliases import Aliases
from common.door.tenancy.files import Files
from common.door.tenancy.webhooks import Webhooks


@dataclass(frozen=True)
class Owned:
    aliases: Aliases
    files: Files
    webhooks: Webhooks

    @classmethod
    def by(cls, door: AnyDoor) -> "Owned":
        """By questions and jobs of a door, as NATS takes them."""
        return cls(Aliases(door), Files(door), Webhooks(door))

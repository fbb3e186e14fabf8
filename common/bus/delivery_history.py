"""How often each message has failed in this process, or was handed back. NATS counts deliveries alone, whatever became of them."""

from dataclasses import dataclass
from datetime import datetime

from nats.aio.msg import Msg

from common.caches import LRUCache
from common.streams import Consumer

KEPT = 10_000
"""Maximum messages that are remembered, the newest; another replica may have ended the others."""

_Key = tuple[str, str, int, datetime]
"""Stream, consumer, sequence of a message in its stream, and when it was stored: a restored stream has its sequences once more."""


@dataclass
class DeliveryHistory:
    """What became of a message's earlier deliveries to this process."""

    failed: int = 0
    """Deliveries whose handler raised Retry, or an exception that is a bug."""
    handed_back: int = 0


class Outcomes:
    """Kept in memory: after a restart, or in another replica, counts begin at 0; `Consumer.max_deliveries` bounds all deliveries."""

    def __init__(self, kept: int = KEPT) -> None:
        self._pasts: LRUCache[_Key, DeliveryHistory] = LRUCache(kept)

    def __len__(self) -> int:
        return len(self._pasts)

    def of(self, consumer: Consumer, message: Msg) -> DeliveryHistory:
        """What is known; nothing for a message that has neither failed nor been handed back here."""
        return self._pasts.peek(_key(consumer, message)) or DeliveryHistory()

    def failed(self, consumer: Consumer, message: Msg) -> int:
        """Count a failure; returns how many there are now."""
        past = self._noted(consumer, message)
        past.failed += 1
        return past.failed

    def handed_back(self, consumer: Consumer, message: Msg) -> None:
        self._noted(consumer, message).handed_back += 1

    def forget(self, consumer: Consumer, message: Msg) -> None:
        """The message is done, or a dead letter."""
        self._pasts.pop(_key(consumer, message))

    def _noted(self, consumer: Consumer, message: Msg) -> DeliveryHistory:
        return self._pasts.get(_key(consumer, message), DeliveryHistory)


def _key(consumer: Consumer, message: Msg) -> _Key:
    return consumer.stream, consumer.name, message.metadata.sequence.stream, message.metadata.timestamp

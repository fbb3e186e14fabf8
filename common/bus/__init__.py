"""Access to NATS: publish, consume, and read streams and key-value buckets.

Delivery is at least once; derived message ids, guarded statements of the scheduler and immutable blobs make its effect exactly once. Rules:

- A consumer requests as many messages as it has free slots, never more, so that other replicas get the rest.
- Heartbeats (`common/heartbeats.py`) keep a message alive while a handler works; it is acknowledged after its results are published.
  A message redelivered to the process that is still working on it does not start a second time.
- The handler's exception decides the message's outcome (`errors.py`). While a server is unavailable, messages wait in the process.
- A message becomes a dead letter after `max_deliveries` deliveries without an answer, because it may crash the processes that handle it;
  and after `max_attempts` failures in one process (`Outcomes`). A hand-back by a parked replica is not a failure.

Layout: bus (publish, consume) on handling (one message and its delivery history) and pull (requests, leases); stored/ (streams and
buckets); followed (a bucket's current values); requests (request and reply); accounts (tenants in NATS), clock, metrics; transport/ (the
connection); delivery (inputs and outputs of a handler).
"""

# pyright: reportUnusedImport=false
from nats.errors import Error as NatsError
from nats.js.errors import BucketNotFoundError

from common.bus.bus import Bus, batch_interval_s
from common.bus.delivery import MAX_PAYLOAD_BYTES, BatchHandler, Delivery, GatedSlots, Handler, Outgoing, Slots, refuse_oversize
from common.bus.followed import REREAD_S, FollowedBucket
from common.bus.pull import HEARTBEATS_PER_LEASE
from common.bus.requests import Listening, NoResponder, Request
from common.bus.stored.key_value import Revised
from common.bus.stored.snapshots import Snapshot
from common.bus.stored.stream_reader import FullStream, Queue, erase_message
from common.bus.transport.address import NO_FILES, TlsFiles, is_beyond_loopback, is_loopback, objection_to_address, without_password
from common.bus.transport.connection import unavailable_as

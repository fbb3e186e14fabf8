"""Crash points: places at which a test kills this process as a power cut would, without handlers, `finally` or flush.

Each lies between two effects that are not one transaction, where at-least-once delivery has to hold:

    before_publish     a handler has yielded a message, and it is not stored yet
    before_ack         a handler's messages are stored (a scheduler's transaction is committed), its input not acknowledged
    after_commit       the scheduler has committed; relay and garbage collector do not know of it
    before_forget      the relay's messages are stored, their rows still in the outbox
    after_blobs        the trainer has stored a version's blobs, and not announced it
    wheel_stored       the scheduler has stored a package's blob, and not committed that
    wheel_deleted      the scheduler has deleted a package's blob, and not committed that
    tenant_deletion    a step of the deletion of a tenant is done, the next has not started
    before_record      an operator's command has made a seed that PostgreSQL does not know
    before_creds       PostgreSQL has a key, and its creds file is not written
    before_push        PostgreSQL has the content of an account's token, and NATS does not have the token
    before_revoke      a key's successor is written, and the key is still valid
    before_passwords   the containers' passwords are chosen, and neither PostgreSQL's volume nor the scheduler's has them
    before_keys        all volumes have their passwords, and there are no keys
    before_secrets     there are keys, and no service has its own
    before_slice       the scheduler has chosen the next slice, and written nothing
    after_slice        slice and orders are committed, and not sent
    before_slice_end   a slice is over without a next one, and nothing is written
    after_slice_end    the end of the slice is committed, and nothing sent
    lease_before_park  an executor has read the order to park, and has not started to park
    lease_in_park      it is parking
    lease_after_park   its state is parked and the accelerator's locks are free; nothing is reported
    lease_before_wake  an executor has the lease and the locks of its accelerator, and has not started to wake
    lease_in_wake      it is waking
    lease_after_wake   it is awake; nothing is reported
    lease_before_renew an executor that holds a lease is about to renew it

MARLAAS_CRASH_POINT=<name>:<n> arms one of them: the process dies when it reaches this point for the n-th time. With <name>:<n>:hang the
process blocks there instead, as in a call that never returns.
"""

import os
import signal
import time
from dataclasses import dataclass

OPERATORS = ("before_record", "before_creds", "before_push", "before_revoke")
"""Crash points in commands that make tenants and keys."""
DELETING = ("before_account_removed", "before_seed_removed")
"""Further crash points in the command that deletes a tenant."""
PACKAGES = ("wheel_stored", "wheel_deleted")
PREPARING = ("before_passwords", "before_keys", "before_secrets")
"""Crash points in the container that makes keys and passwords."""
SLICES = ("before_slice", "after_slice", "before_slice_end", "after_slice_end")
"""Crash points in decisions about shared accelerators."""
LEASES = (
    *("lease_before_park", "lease_in_park", "lease_after_park"),
    *("lease_before_wake", "lease_in_wake", "lease_after_wake", "lease_before_renew"),
)
"""Crash points in executors of shared accelerators."""
NAMES = (
    *("before_publish", "before_ack", "after_commit", "before_forget", "after_blobs", "tenant_deletion"),
    *(*PACKAGES, *OPERATORS, *DELETING, *PREPARING, *SLICES, *LEASES),
)
HANG = ":hang"
HANG_S = 3600.0
SETTING = rf"^$|^({'|'.join(NAMES)}):[1-9][0-9]*({HANG})?$"
"""Pattern of MARLAAS_CRASH_POINT; empty arms none."""


@dataclass
class _Armed:
    name: str
    left: int
    hangs: bool


_armed: _Armed | None = None


def arm(setting: str) -> None:
    """Arm the crash point of `setting`, which matches SETTING."""
    global _armed
    name, _, nth = setting.removesuffix(HANG).partition(":")
    _armed = _Armed(name, int(nth), setting.endswith(HANG)) if name else None


def reached(name: str) -> None:
    """Die or hang if `name` is armed; a single comparison if nothing is armed."""
    if _armed is not None and _armed.name == name:
        _armed.left -= 1
        if _armed.left == 0:
            while _armed.hangs:
                time.sleep(HANG_S)
            os.kill(os.getpid(), signal.SIGKILL)

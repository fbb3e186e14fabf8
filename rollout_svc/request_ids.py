"""Ids and seeds derived from a request, so that a redelivered message repeats both the request and the answer."""

import hashlib
from collections.abc import Sequence

from common.messages import GroupContext


def seed_of(group: GroupContext, member: int, turn: int) -> int:
    """The sampling seed of one turn: 63 bits, different for every member and turn of a group."""
    digest = hashlib.sha256(f"{group.seed}:{member}:{turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def request_id(group: GroupContext, member: int, turn: int) -> str:
    """The engine's id of one member's turn."""
    return f"{group.task}:{group.group}:{member}:{turn}"


def message_id(group: GroupContext, members: Sequence[tuple[int, int]]) -> str:
    """Id of a message that carries these (member, turn) pairs.

    After a redelivery, members may be grouped otherwise as they finish, and one is then sent twice under two ids:
    the environment replays it, and the scheduler takes the first.
    """
    pairs = sorted(members)
    turns = ".".join(str(turn) for turn in sorted({turn for _, turn in pairs}))
    return f"{group.task}:{group.group}:{'.'.join(str(member) for member, _ in pairs)}:{turns}:sampled"

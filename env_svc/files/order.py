"""The order of rows, without a list of them. Pure."""

import hashlib

ROUNDS = 4


def permuted(position: int, count: int, key: str) -> int:
    """Where `position` comes in an order of `count` that `key` names: each of 0 to count - 1 once.

    A Feistel network over the smallest square of a power of two that holds `count`; what falls outside is mixed again.
    """
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    while True:
        position = _mixed(position, half, key)
        if position < count:
            return position


def _mixed(value: int, half: int, key: str) -> int:
    left, right, mask = value >> half, value & ((1 << half) - 1), (1 << half) - 1
    for number in range(ROUNDS):
        digest = hashlib.blake2b(f"{key}:{number}:{right}".encode(), digest_size=8).digest()
        left, right = right, left ^ (int.from_bytes(digest, "big") & mask)
    return left << half | right

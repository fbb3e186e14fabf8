"""Deletion of stored messages whose bytes must not stay in NATS's files (ADR 25)."""

from contextlib import suppress

from nats.js import JetStreamContext
from nats.js.errors import APIError, NotFoundError

FILLING_BYTES = 1024 * 1024
FILLINGS = 9
"""Messages that are more than one file of NATS's store, which has 8 MiB at most."""


async def erase_message(js: JetStreamContext, stream: str, sequence: int) -> None:
    """Delete a message and overwrite its bytes; does nothing where it is gone. Raises: NATS's own errors."""
    try:
        await js.delete_msg(stream, sequence)
    except APIError:
        with suppress(NotFoundError):
            await js.get_msg(stream, sequence)
            raise


async def fill(js: JetStreamContext, subject: str, headers: dict[str, str] | None = None) -> None:
    """Store messages without content, more than one file of NATS's store. Raises: NATS's own errors."""
    for _ in range(FILLINGS):
        await js.publish(subject, bytes(FILLING_BYTES), headers=headers)

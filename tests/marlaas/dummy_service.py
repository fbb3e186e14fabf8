"""An empty service with the real skeleton, to test the stack by itself."""

import asyncio
import sys

from common.runtime.service import Running, run_service
from common.runtime.settings import Settings


class DummySettings(Settings):
    service = "DUMMY"
    declares_streams = True


async def main(running: Running[DummySettings]) -> None:
    running.health.set_ready()
    await asyncio.Event().wait()


if __name__ == "__main__":
    if "--broken" in sys.argv:
        sys.exit("model folder /nowhere does not exist")
    run_service(DummySettings, main)

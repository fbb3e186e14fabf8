"""Stalls of an event loop: turns in which it answers no other request.

    python -m bench.harness.measures.stalls FILE

runs a gateway (its settings are environment variables), and writes to FILE a line for each long turn: when it ended (Unix time), its
processor seconds and its seconds; processor seconds count no other process's.
"""

import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

EVERY_S = 0.002
LONG_S = 0.005


async def watch_stalls(noted: Callable[[float, float], None]) -> None:
    """Until cancelled; `noted` gets the processor seconds and the seconds of each turn."""
    began_s, processor_s = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep(EVERY_S)
        now_s, used_s = time.perf_counter(), time.thread_time()
        noted(used_s - processor_s, max(0.0, now_s - began_s - EVERY_S))
        began_s, processor_s = time.perf_counter(), time.thread_time()


def main() -> None:
    from common.runtime.service import Running, run_service
    from gateway_svc.__main__ import new_loop
    from gateway_svc.service import serve
    from gateway_svc.settings import GatewaySettings

    with Path(sys.argv[1]).open("w", buffering=1) as written:

        def noted(processor_s: float, took_s: float) -> None:
            if max(processor_s, took_s) > LONG_S:
                written.write(f"{time.time()} {processor_s:.4f} {took_s:.4f}\n")

        async def watched(running: Running[GatewaySettings]) -> None:
            watching = asyncio.create_task(watch_stalls(noted))
            try:
                await serve(running)
            finally:
                watching.cancel()

        run_service(GatewaySettings, watched, new_loop=new_loop)


if __name__ == "__main__":
    main()

"""`python -m scheduler_svc.doctor [--help]`: exit status 0 if every rule holds, 1 if not, 2 if a store does not answer."""

import argparse
import asyncio
import sys
from pathlib import Path

from common.runtime.output import ends_with_its_reader
from common.runtime.settings import read_or_exit
from scheduler_svc.settings import SchedulerSettings

ANSWER_TIMEOUT_S = 60.0
"""Default seconds to wait for each store; machines under load answer slowly."""


@ends_with_its_reader()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scheduler_svc.doctor", description="Check the invariants of a running stack.")
    parser.add_argument("--deep", action="store_true", help="read every adapter and checkpoint, and compare its digest")
    parser.add_argument("--strict", action="store_true", help="report also what the scheduler's next sweep would delete")
    parser.add_argument("--json", action="store_true", help="print the violations as JSON")
    parser.add_argument("--keys", type=Path, help="folder of signing keys: examine it too, and the accounts that NATS has")
    parser.add_argument("--timeout-s", type=float, default=ANSWER_TIMEOUT_S, help="seconds to wait for each of PostgreSQL and NATS")
    options = parser.parse_args()
    settings = read_or_exit(SchedulerSettings)
    assert isinstance(settings, SchedulerSettings)
    sys.exit(asyncio.run(_run(settings, options)))


async def _run(settings: SchedulerSettings, options: argparse.Namespace) -> int:
    import logging

    import structlog

    from common.errors import MarlaasError
    from common.runtime.service import connect_bus
    from scheduler_svc.base.database import Database
    from scheduler_svc.doctor.runner import Depth, Keys, as_json, as_lines, examine

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))  # the last line names the missing server
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    missing = "PostgreSQL does not answer with this version's schema; correct MARLAAS_SCHEDULER_DATABASE_URL"
    try:
        async with asyncio.timeout(options.timeout_s) as limit:
            database = await Database.connect(settings.database_url)
            missing = "NATS does not answer; correct MARLAAS_NATS_URL"
            limit.reschedule(asyncio.get_running_loop().time() + options.timeout_s)
            bus = await connect_bus(settings, "doctor")
            keys = await Keys.read(options.keys, settings.nats_url) if options.keys else None
        try:
            found = await examine(database, bus, Depth(grace_s=0 if options.strict else 2 * settings.sweep_s, deep=options.deep), keys)
        finally:
            await bus.close()
            if keys:
                await keys.close()
            await database.close()
    except TimeoutError:
        sys.stderr.write(f"doctor: {missing}\n")
        return 2
    except MarlaasError as error:
        sys.stderr.write(f"doctor: {error}\n")
        return 2
    sys.stdout.write(as_json(found) if options.json else as_lines(found, deep=options.deep, further=keys.rules if keys else ()))
    return 1 if found else 0


if __name__ == "__main__":
    main()

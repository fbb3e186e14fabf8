"""`python -m trainer_svc.replay TASK [STEP]`: exit status 0 if all digests are equal, 1 if one differs or a step cannot be
replayed, 2 if the stack does not answer."""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from common.runtime.output import ends_with_its_reader
from common.runtime.settings import read_or_exit
from trainer_svc.settings import TrainerSettings

if TYPE_CHECKING:
    from common.bus import Bus
    from trainer_svc.replay.steps import StepComparison

CONNECT_TIMEOUT_S = 8.0


@ends_with_its_reader()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m trainer_svc.replay", description="Replay recorded steps and compare the digests.")
    parser.add_argument("task")
    parser.add_argument("step", type=int, nargs="?", help="version that the step made; default: every step from version 0")
    parser.add_argument("--json", action="store_true", help="print one JSON object a step")
    options = parser.parse_args()
    settings = read_or_exit(TrainerSettings)
    assert isinstance(settings, TrainerSettings)
    sys.exit(asyncio.run(_run(settings, options)))


async def _run(settings: TrainerSettings, options: argparse.Namespace) -> int:
    import logging

    import structlog

    from common.errors import MarlaasError, Reject
    from common.runtime.service import connect_bus

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))  # errors are one line
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            bus = await connect_bus(settings, "replay")
    except TimeoutError:
        sys.stderr.write("replay: NATS does not answer; correct MARLAAS_NATS_URL\n")
        return 2
    try:
        async with bus:
            return await _compare(bus, settings, options)
    except Reject as error:
        sys.stderr.write(f"replay: {error}\n")
        return 1
    except MarlaasError as error:
        sys.stderr.write(f"replay: {error}\n")
        return 2


async def _compare(bus: "Bus", settings: TrainerSettings, options: argparse.Namespace) -> int:
    from common.pools import read_pools
    from common.pools.model_files import with_model_files
    from trainer_svc.learner import Learner
    from trainer_svc.replay.steps import replay_all, replay_step

    pool = with_model_files(settings.pool, read_pools(settings.pools_file)[settings.pool])
    learner = await Learner.start(pool, device=settings.device, threads=settings.threads)
    found: list[StepComparison] = []
    if options.step is not None:
        found.append(await replay_step(bus, learner, options.task, options.step))
        sys.stdout.write(_shown(found[-1], as_json=options.json))
    else:
        async for compared in replay_all(bus, learner, options.task):
            found.append(compared)
            sys.stdout.write(_shown(compared, as_json=options.json))
            sys.stdout.flush()
    return _verdict(found, as_json=options.json)


def _shown(compared: "StepComparison", *, as_json: bool) -> str:
    if as_json:
        return json.dumps(vars(compared) | {"equal": compared.is_equal}) + "\n"
    pairs = (("adapter", compared.adapter, compared.recorded_adapter), ("checkpoint", compared.checkpoint, compared.recorded_checkpoint))
    said = ", ".join(f"{what} {new[:16]}" + ("" if new == old else f" (recorded {old[:16]})") for what, new, old in pairs)
    return f"step {compared.version:>5}  {'equal  ' if compared.is_equal else 'DIFFERS'}  {said}\n"


def _verdict(found: "Sequence[StepComparison]", *, as_json: bool) -> int:
    different = [compared.version for compared in found if not compared.is_equal]
    if not as_json:
        steps = f"{len(found)} step{'s' if len(found) > 1 else ''}"
        sys.stdout.write(f"{steps} replayed: {f'{len(different)} differ' if different else 'all equal to the recorded ones'}\n")
    return 1 if different else 0


if __name__ == "__main__":
    main()

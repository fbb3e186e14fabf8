"""Adapters with random weights, and the canary that the trainer gives each: `… versions MODEL FOLDER COUNT RANK DEVICE`."""

import json
import sys
from pathlib import Path

from bench.canary import trainer_logprobs
from bench.harness.services import BenchError
from bench.plex.real.tiers.orders import running
from common.pools import Pool

FILE = "canaries.json"


def make(model: Path, folder: Path, count: int, rank: int, device: str) -> None:
    """Adapters `adapter-0` … in `folder`, made in a process of their own. Raises: BenchError."""
    if (folder / FILE).exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    with running("versions", [str(model), str(folder), str(count), str(rank), device], folder / "versions.log") as process:
        if process.order("made") is not True:
            raise BenchError("no adapters were made")


def main() -> None:
    import asyncio

    from bench.plex.real.tiers.orders import obey, take_output

    answers = take_output()
    model, folder, count, rank, device = sys.argv[1:]
    ids, expected = trainer_logprobs(Pool(model=model, max_rank=int(rank)), device, int(count), Path(folder))  # type: ignore[arg-type]
    canaries = {"ids": ids, "logprobs": {name: found.tolist() for name, found in expected.items()}}
    (Path(folder) / FILE).write_text(json.dumps(canaries))

    async def made(_: str, __: list[str]) -> object:
        return True

    asyncio.run(obey(answers, made))


if __name__ == "__main__":
    main()

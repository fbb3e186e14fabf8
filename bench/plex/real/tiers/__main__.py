"""Tiers of samplers and trainers, of each base model; each is kept as soon as it is measured."""

import argparse
import json
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.harness import part, report
from bench.harness.services import BenchError, nats, run_or_exit
from bench.plex.real import bases
from bench.plex.real.tiers import versions
from bench.plex.real.tiers.figures import sequences, tiers
from bench.plex.real.tiers.orders import Executor, running
from common.accelerators import Tier
from common.leases import holders

MEASURES = ("bench/plex/real/tiers", "bench/harness/measures/memory.py", "common/accelerators", "rollout_svc", "trainer_svc")
EXECUTORS = ("sampler", "trainer")
PARTS = ("tiers", "sequences")
ADAPTERS = 4
RANK = 8
AWAKE = "awake"
LOCKS = "locks"
"""Name of the folder of locks, which executors that are killed hold in every tier."""
STRAY_MIB = 4.0
"""By which the memory of a process varies by itself: of a small model that is half."""


def main() -> None:
    options = arguments()
    machine = report.machine()
    models = dict(options.models) or bases.make(options.folder / "bases")
    found: dict[str, Any] = {}
    result: dict[str, Any] = {"machine": machine, "device": options.device, "kv_cache_gib": options.kv_cache_gib, "bases": found}

    def keep(what: str, figures: dict[str, Any]) -> None:
        print(f"{what}: {json.dumps(figures)}", flush=True)
        print(f"written: {report.write(options.name, result, MEASURES)}")

    options.log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="marlaas-tiers-") as name, nats(Path(name)) as url:
        for base in models if options.models else options.bases:
            of_base: dict[str, Any] = found.setdefault(base, {})
            for executor in options.executors:
                of_base[executor] = one(base, executor, models[base], url, Path(name), options)
                keep(f"{base} {executor}", of_base[executor])
    if wrong := list(complaints(result)):
        raise BenchError("; ".join(wrong))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--bases", type=lambda text: text.split(","), default=list(bases.NAMES))
    parser.add_argument("--models", type=named_folders, default={}, help="NAME=FOLDER,… in place of these")
    parser.add_argument("--executors", type=lambda text: text.split(","), default=list(EXECUTORS))
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--closings", type=int, default=3, help="moves to tier `none`")
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--sequences-s", type=float, default=3_600.0, help="after which none begins")
    parser.add_argument("--parts", type=lambda text: text.split(",") if text else [], default=list(PARTS), help=f"of {','.join(PARTS)}")
    parser.add_argument(
        "--kills", type=lambda text: text.split(","), default=[], help=f"then kill each executor in these tiers, or {AWAKE}"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--gpu", default="0", help="number or UUID, with --device cuda")
    parser.add_argument("--core", type=int, default=1, help="of the engine, with --device cpu")
    parser.add_argument("--kv-cache-gib", type=float, default=0.25)
    parser.add_argument("--gpu-memory-share", type=float, default=0.3)
    parser.add_argument("--folder", type=Path, default=report.ROOT / ".marlaas" / "plex", help="of base models and adapters")
    parser.add_argument("--log", type=Path, default=report.ROOT / ".marlaas" / "plex" / "tiers.log", help="output of the executors")
    parser.add_argument("--name", default="plex-tiers", help="of the result")
    return parser.parse_args()


def named_folders(text: str) -> dict[str, Path]:
    return {name: Path(folder) for name, _, folder in (part.partition("=") for part in text.split(","))}


def one(base: str, executor: str, model: Path, url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The executor's figures."""
    found: dict[str, Any] = {"load": report.load_now()}
    if options.parts:
        with started(base, executor, model, url, folder, options) as process:
            with part.phase("start"):
                process.order("use")
            with part.phase("measured"):
                if "tiers" in options.parts:
                    found |= tiers(process, options.cycles, options.closings)
                    part.keep(found)
                if "sequences" in options.parts:
                    found["sequences"] = sequences(process, options.sequences, options.sequences_s)
    if options.kills:
        found["kills"] = kills(base, executor, model, url, folder, options)
    return found


def started(base: str, executor: str, model: Path, url: str, folder: Path, options: argparse.Namespace) -> AbstractContextManager[Executor]:
    gpu = options.gpu if options.device == "cuda" else ""
    own = Path(tempfile.mkdtemp(dir=folder))
    if executor == "trainer":
        precision = "bfloat16" if gpu else "float32"
        return running("trainer", [str(model), url, str(own), options.device, precision, str(folder / LOCKS)], options.log, gpu)
    adapters = options.folder / "adapters" / f"{base}-{options.device}"
    versions.make(model, adapters, ADAPTERS, RANK, options.device)
    given = {
        "model": str(model),
        "versions": str(adapters),
        "nats_url": url,
        "folder": str(own / "adapters"),
        "device": options.device,
        "core": options.core,
        "kv_cache_gib": options.kv_cache_gib,
        "gpu_memory_share": options.gpu_memory_share,
        "rank": RANK,
        "locks": str(folder / LOCKS),
    }
    return running("sampler", [json.dumps(given)], options.log, gpu)


def kills(base: str, executor: str, model: Path, url: str, folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """SIGKILL of the service's process in each tier, and another executor after it."""
    found: list[dict[str, Any]] = []
    for tier in (*options.kills, None):
        with started(base, executor, model, url, folder, options) as process:
            with part.phase("start"):
                works = bool(process.order("lock") and process.order("use"))
            if found:
                found[-1]["next_works"] = works
            if tier is not None:
                found.append(killed(tier, process, folder / LOCKS))
                part.keep({"kills": found})
    return found


def killed(tier: str, process: Executor, locks: Path) -> dict[str, Any]:
    """Seconds until all its processes have ended, and whether its locks are free then; on a GPU, what is freed by then."""
    if tier != AWAKE:
        process.order(f"park {tier}")
    before = process.device_bytes()
    gone_s = process.kill()
    after, held = process.device_bytes(), holders(locks)
    found: dict[str, Any] = {"tier": tier, "gone_s": None if gone_s is None else round(gone_s, 3)}
    found["locks_free"] = not held.computing and not held.memory
    return found | ({} if before is None or after is None else {"device_freed_mib": round((before - after) / 2**20, 1)})


def complaints(result: dict[str, Any]) -> Iterable[str]:
    """What is not as it must be."""
    for base, executors in result["bases"].items():
        for executor in EXECUTORS:
            if executor in executors:
                yield from (f"{base} {executor} {wrong}" for wrong in wrongs(executors[executor]))


def wrongs(found: dict[str, Any]) -> Iterable[str]:
    """Of one executor; of parts that were measured."""
    for tier in (Tier.HOST, Tier.DISK) if "tiers" in found else ():
        share, held_mib = found["tiers"][tier]["freed_share"], found["tiers"][tier]["held_mib"]
        if (1 - share) * held_mib > max(0.1 * held_mib, STRAY_MIB):
            yield f"in {tier} frees {share:.1%} of {held_mib:.1f} MiB"
        if (share := found["tiers"][tier]["processor_share"]) >= 0.01:
            yield f"in {tier} uses {share:.1%} of a core"
    if "cycles" in found and (left := found["cycles"]["left_mib"]) > 16:
        yield f"keeps {left} MiB after {found['cycles']['cycles']} cycles"
    if played := found.get("sequences"):
        if played.get("steps_with_other_digests") or (played.get("invariant") and played["requests_with_other_tokens"]):
            yield f"gave other answers than undisturbed: {played}"
        if played.get("largest_difference", 0) > 1e-3 and played["invariant"]:
            yield f"gave log-probabilities that differ by {played['largest_difference']}"
    for kill in found.get("kills", []):
        if kill["gone_s"] is None:
            yield f"killed in {kill['tier']} leaves processes"
        if not kill.get("locks_free", True):
            yield f"killed in {kill['tier']} leaves its locks held"
        if not kill.get("next_works", True):
            yield f"does not work after one that was killed in {kill['tier']}"


if __name__ == "__main__":
    run_or_exit("bench.plex.real.tiers", main)

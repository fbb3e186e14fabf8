"""Tiers of samplers and trainers, of each base model."""

import argparse
import json
import tempfile
from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from bench.harness import report
from bench.harness.services import BenchError, nats, run_or_exit
from bench.plex.real import bases
from bench.plex.real.tiers import versions
from bench.plex.real.tiers.figures import measured
from bench.plex.real.tiers.orders import Executor, running
from common.accelerators import Tier

MEASURES = ("bench/plex/real/tiers", "common/accelerators", "rollout_svc", "trainer_svc")
EXECUTORS = ("sampler", "trainer")
ADAPTERS = 4
RANK = 8
WITH_STOCK = "small"
"""Base model with which vLLM's own worker is measured, too."""
AWAKE = "awake"


def main() -> None:
    options = arguments()
    machine = report.machine()
    models = dict(options.models) or bases.make(options.folder / "bases")
    found: dict[str, Any] = {}
    options.log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="marlaas-tiers-") as name, nats(Path(name)) as url:
        for base in models if options.models else options.bases:
            found[base] = {}
            for executor in options.executors:
                found[base][executor] = one(base, executor, models[base], url, Path(name), options)
                print(f"{base} {executor}: {json.dumps(found[base][executor])}", flush=True)
            if base == WITH_STOCK and options.device == "cpu" and "sampler" in options.executors:
                found[base]["stock"] = stock(models[base], url, Path(name), options)
                print(f"{base} stock: {json.dumps(found[base]['stock'])}", flush=True)
    result: dict[str, Any] = {
        "machine": machine,
        "device": options.device,
        "kv_cache_gib": options.kv_cache_gib,
        "bases": added(report.read(options.name).get("bases", {}), found) if options.add else found,
    }
    print(f"written: {report.write(options.name, result, MEASURES)}")
    if wrong := list(complaints(result["bases"])):
        raise BenchError("; ".join(wrong))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--bases", type=lambda text: text.split(","), default=list(bases.NAMES))
    parser.add_argument("--models", type=named_folders, default={}, help="NAME=FOLDER,… in place of these")
    parser.add_argument("--executors", type=lambda text: text.split(","), default=list(EXECUTORS))
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--closings", type=int, default=3, help="moves to tier `none`")
    parser.add_argument("--sequences", type=int, default=200)
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
    parser.add_argument("--add", action="store_true", help="keep what the result that is there has of others")
    return parser.parse_args()


def added(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Executors measured before beside those measured now."""
    return {base: before.get(base, {}) | found.get(base, {}) for base in (*before, *(found.keys() - before.keys()))}


def named_folders(text: str) -> dict[str, Path]:
    return {name: Path(folder) for name, _, folder in (part.partition("=") for part in text.split(","))}


def one(base: str, executor: str, model: Path, url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    with started(base, executor, model, url, folder, options) as process:
        found = measured(process, options.cycles, options.closings, options.sequences)
    found |= {"asked": {"cycles": options.cycles, "sequences": options.sequences, "load": report.load_now(), "commit": report.commit()}}
    if options.kills:
        found["kills"] = [killed(tier, base, executor, model, url, folder, options) for tier in options.kills]
    return found


def started(
    base: str, executor: str, model: Path, url: str, folder: Path, options: argparse.Namespace, worker: str = "ours"
) -> AbstractContextManager[Executor]:
    gpu = options.gpu if options.device == "cuda" else ""
    own = Path(tempfile.mkdtemp(dir=folder))
    if executor == "trainer":
        precision = "bfloat16" if gpu else "float32"
        return running("trainer", [str(model), url, str(own), options.device, precision], options.log, gpu)
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
        "worker": worker,
    }
    return running("sampler", [json.dumps(given)], options.log, gpu)


def killed(tier: str, base: str, executor: str, model: Path, url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """SIGKILL of the service's process in this tier: seconds until all its processes have ended; on a GPU, what is freed by then."""
    with started(base, executor, model, url, folder, options) as process:
        process.order("use")
        if tier != AWAKE:
            process.order(f"park {tier}")
        before = process.device_bytes()
        gone_s = process.kill()
        after = process.device_bytes()
    found: dict[str, Any] = {"tier": tier, "gone_s": None if gone_s is None else round(gone_s, 3)}
    return found | ({} if before is None or after is None else {"device_freed_mib": round((before - after) / 2**20, 1)})


def stock(model: Path, url: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The share that vLLM's own worker frees in the same test."""
    found: dict[str, Any] = {}
    with started(WITH_STOCK, "sampler", model, url, folder, options, worker="stock") as process:
        for tier in (Tier.HOST, Tier.DISK):
            process.order("fill")
            held, before = process.order("bytes")[0], process.private_bytes()
            process.order(f"park {tier}")
            found[tier] = {"freed_share": round((before - process.private_bytes()) / held, 4)}
            if tier is Tier.HOST:
                process.order("wake")
    return found


def complaints(found: dict[str, Any]) -> Iterable[str]:
    """What is not as it must be."""
    for base, executors in found.items():
        for executor in EXECUTORS:
            if executor not in executors:
                continue
            one, where = executors[executor], f"{base} {executor}"
            for tier in (Tier.HOST, Tier.DISK):
                if (share := one["tiers"][tier]["freed_share"]) < 0.9:
                    yield f"{where} in {tier} frees {share:.1%}"
                if (share := one["tiers"][tier]["processor_share"]) >= 0.01:
                    yield f"{where} in {tier} uses {share:.1%} of a core"
            if (left := one["cycles"]["left_mib"]) > 16:
                yield f"{where} keeps {left} MiB after {one['cycles']['cycles']} cycles"
            played = one["sequences"]
            if played.get("steps_with_other_digests") or (played.get("invariant") and played["requests_with_other_tokens"]):
                yield f"{where} gave other answers than undisturbed: {played}"
            if played.get("largest_difference", 0) > 1e-3 and played["invariant"]:
                yield f"{where} gave log-probabilities that differ by {played['largest_difference']}"
            yield from (f"{where} killed in {kill['tier']} leaves processes" for kill in one.get("kills", []) if kill["gone_s"] is None)


if __name__ == "__main__":
    run_or_exit("bench.plex.real.tiers", main)

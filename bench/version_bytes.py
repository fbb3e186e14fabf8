"""Bytes that a version adds to the blob store: `python -m bench.version_bytes`. Writes bench/results/version-bytes.json.

The real trainer, over a real NATS, trains a rank-32 adapter of a random base model of Qwen3-0.6B's shape, with `checkpoint_every` of 1 and
of 4, in float32 and in bfloat16. For each version: the store's growth, against the adapter and the optimizer's state; and a rollout
replica's time to fetch and read the adapter. Steps are small, so a batch's own bytes are listed for each token too.
"""

import argparse
import asyncio
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import memory
from bench.harness import models, report, services
from bench.harness.load.groups import group_context
from common import streams
from common.blobs import Blobs
from common.bus import Bus, Delivery, Outgoing
from common.messages import (
    BatchGroup,
    BatchMember,
    BlobRef,
    GroupContext,
    ScoredTrajectory,
    TokenRecord,
    TrainBatch,
    TrajectoriesScored,
    WeightUpdated,
)
from common.pools.memory import ModelShape
from common.spec import TaskSpec, parse_spec

if TYPE_CHECKING:
    from trainer_svc.batch import Group
    from trainer_svc.model.policy import Policy

ALLOWED = 1.1
"""Bytes of a version as a multiple of its adapter, and of its state where that is stored."""
TASK = "bench"


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    result: dict[str, Any] = {"machine": report.machine(), "model": args.model, "rank": args.rank, "allowed": ALLOWED}
    result["rows"] = rows(args)
    print(json.dumps(result["rows"], indent=1))
    print(f"written: {report.write(args.name, result)}")


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(models.MODELS), default="qwen3-0.6b")
    parser.add_argument("--precision", default="float32,bfloat16")
    parser.add_argument("--every", default="1,4", help="values of the pool's checkpoint_every")
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=512, help="of a step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--name", default="version-bytes", help="of the file in bench/results")
    return parser.parse_args(argv)


def rows(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One result for each precision and each value of `checkpoint_every`."""
    import torch

    from trainer_svc.model.policy import Policy, prepare_torch

    cpu = torch.device("cpu")
    prepare_torch(args.threads, cpu)
    found: list[dict[str, Any]] = []
    for precision in args.precision.split(","):
        policy = Policy(models.random_model(models.MODELS[args.model], getattr(torch, precision), cpu), cpu)
        for every in map(int, args.every.split(",")):
            with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder, services.nats(Path(folder)) as url:
                found.append({"precision": precision, "checkpoint_every": every} | asyncio.run(trained(args, policy, url, every)))
    return found


async def trained(args: argparse.Namespace, policy: "Policy", url: str, every: int) -> dict[str, Any]:
    from trainer_svc.learner import Learner
    from trainer_svc.service import Trainer
    from trainer_svc.state.resident import Residents

    spec = parse_spec(
        {
            "name": TASK,
            "tenant": TASK,
            "pool": TASK,
            "steps": args.steps + 1,
            "environment": {"name": "none"},
            "lora": {"rank": args.rank},
            "algorithm": {"max_staleness": 1},
        }
    )
    async with await Bus.connect(url, "bench") as bus:
        await bus.declare()
        with ThreadPoolExecutor(max_workers=1) as thread:
            learner = Learner(policy, thread, budget_tokens=4 * args.tokens)
            trainer = Trainer(bus, learner, Residents(2), TASK, checkpoint_every=every)
            return await versions(args, bus, trainer, spec, policy.vocabulary)


async def versions(args: argparse.Namespace, bus: Bus, trainer: Any, spec: TaskSpec, vocabulary: int) -> dict[str, Any]:
    """Each version's bytes, and the maximum shares of the limits."""
    shape = ModelShape.of(models.MODELS[args.model])
    assert shape is not None
    state = 3 * 4 * shape.adapter_parameters(args.rank)
    listed: list[dict[str, Any]] = []
    update: WeightUpdated | None = None
    for version in range(args.steps):
        groups = memory.made_groups(vocabulary, args.tokens, shared=True)
        before = (await Blobs(bus).usage()).used_bytes if version else 0
        update = await step(bus, trainer, spec, groups, version, update.checkpoint if update else None)
        grown = (await Blobs(bus).usage()).used_bytes - before
        adapter, is_whole = update.adapter.blob.size_bytes, update.checkpoint.since is None
        row = {
            "version": version + 1,
            "state_stored": is_whole,
            "bytes": grown,
            "adapter_bytes": adapter,
            "checkpoint_bytes": update.checkpoint.size_bytes,
            "batch_bytes": update.batch.size_bytes if update.batch else 0,
            "share": round(grown / (adapter + (state if is_whole else 0)), 4),
        }
        listed.append(row | ({"batch_bytes_a_token": round(update.batch.size_bytes / update.trained_tokens, 2)} if update.batch else {}))
    assert update is not None
    return {
        "state_bytes": state,
        "mean_bytes": round(sum(row["bytes"] for row in listed) / len(listed)),
        "largest_share": max(row["share"] for row in listed),
        "is_allowed": all(row["share"] <= ALLOWED for row in listed),
        "adapter_load": await loaded(bus, update.adapter.blob),
        "versions": listed,
    }


async def step(bus: Bus, trainer: Any, spec: TaskSpec, groups: "list[Group]", version: int, checkpoint: BlobRef | None) -> WeightUpdated:
    """The trainer's weight update of one step."""
    named: list[BatchGroup] = []
    for group in groups:
        message = TrajectoriesScored(group=context(group, version, spec), members=[scored(one) for one in group.trajectories])
        subject = streams.scored(TASK, message.group.trajectory(message.members[0].member))
        sequence = await bus.publish(Outgoing(subject, message, f"{version}-{group.group}"))
        members = [BatchMember(member=one.member, sequence=sequence, reward=one.reward) for one in group.trajectories]
        named.append(BatchGroup(group=group.group, version=max(0, version - 1), members=members))  # random log-probabilities are stale
    batch = TrainBatch(tenant=TASK, task=TASK, pool=TASK, version=version, spec=spec, checkpoint=checkpoint, groups=named, weight=1.0)
    found = [out async for out in trainer.handle(Delivery(streams.batch(TASK, TASK), {}, batch.encode(), 1, 1))]
    (out,) = found
    assert isinstance(out.message, WeightUpdated)
    return out.message


def context(group: "Group", version: int, spec: TaskSpec) -> GroupContext:
    return group_context(
        TASK,
        group.group,
        tenant=TASK,
        pool=TASK,
        size=len(group.trajectories),
        version=max(0, version - 1),
        family="none",
        environment=spec.environment,
        sampling=spec.sampling,
        limits=spec.limits,
    )


def scored(one: Any) -> ScoredTrajectory:
    record = TokenRecord(
        ids=one.ids_T.astype("<i4").tobytes(), logprobs=one.sampler_logprobs_T.astype("<f4").tobytes(), sampled=one.sampled_T.tobytes()
    )
    return ScoredTrajectory(member=one.member, transcript=record, reward=one.reward, turns=1, env_ms=0, away_ms=0)


async def loaded(bus: Bus, adapter: BlobRef) -> dict[str, float]:
    """Minimum of three processor times to fetch the adapter and read its tensors."""
    from safetensors.torch import load_file

    took: list[float] = []
    for _ in range(3):
        with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
            began = time.process_time()
            fetched = await Blobs(bus).fetch_folder(adapter, Path(folder) / "adapter")
            load_file(fetched / "adapter_model.safetensors")
            took.append(time.process_time() - began)
    return {"bytes": adapter.size_bytes, "cpu_s": round(min(took), 3)}


if __name__ == "__main__":
    main()

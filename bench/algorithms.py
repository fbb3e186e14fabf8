"""Every loss on the demo's task: reward after equal samples, by staleness and correction.

    python -m bench.algorithms [--steps 16] [--seeds 0,1]     writes bench/results/algorithms.json, draws, prints the table

The trainer's own steps and the environment of `examples/letters.toml` run in one process. Samples of version v − s train
version v, where s is exactly the staleness (less at the start), so nothing else varies. Each step is two updates: with one update
and one policy all of these losses have the same gradient.

`sampler` and `start` are `correction.proximal`. `none` is no correction: the tokens count as if the
policy at the start of the step had sampled them. `reinforce` runs unbounded there, which a task's spec would refuse.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from bench.harness import report
from bench.harness.report import ROOT
from common.messages import ChatMessage, TokenRecord, TurnRequest
from common.spec import LORA_TARGETS, TaskSpec, parse_spec
from env_svc.contract import Finish, Reply
from env_svc.registry import AnyEnvironment, build
from rollout_svc.chat import Chat
from trainer_svc.algorithm.step import train_step
from trainer_svc.batch import Group, Trajectory
from trainer_svc.learner import initial_resident
from trainer_svc.model.batched_lora import Part, by_one
from trainer_svc.model.lora import adapt, attached
from trainer_svc.model.packing import Row, Sample, collate
from trainer_svc.model.policy import Adapted, Policy, prepare_torch
from trainer_svc.state.resident import Resident

MODEL = str(ROOT / "models/tiny")
NAME = "algorithms"
LOSSES: dict[str, dict[str, Any]] = {
    "ppo": {"loss": "ppo"},
    "gspo": {"loss": "gspo", "normalize": "sequence", "clip_low": 0.03, "clip_high": 0.04},
    "cispo": {"loss": "cispo", "clip_low": 1.0, "clip_high": 0.28},
    "reinforce": {"loss": "reinforce"},
}
"""Algorithm sections. GSPO's bounds are its paper's times 100: a reply has ten tokens here, not a thousand, so the mean
log-ratio of a sequence moves 100 times as far."""
STALENESS = (0, 1, 4)
CORRECTIONS = ("none", "sampler", "start")
NEW_TOKENS = 16
LAST_STEPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--draw", action="store_true", help="draw and print what was measured before")
    options = parser.parse_args()
    path = report.RESULTS / f"{NAME}.json"
    if options.draw:
        result = json.loads(path.read_text())
    else:
        prepare_torch(options.threads, torch.device("cpu"))
        result = {"machine": report.machine(), "steps": options.steps, "runs": list[dict[str, Any]]()}
        policy, sampler = Policy.load(MODEL, torch.device("cpu")), TinySampler()
        for seed in map(int, options.seeds.split(",")):
            result["runs"] += measured(policy, sampler, options.steps, seed)
            report.write(NAME, result)
    from bench.charts import learning

    learning.draw_algorithms(result)
    print(table(result))


def measured(policy: Policy, sampler: "TinySampler", steps: int, seed: int) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = []
    for staleness in STALENESS:
        for loss in LOSSES:
            # Without staleness sampler and start are one policy, and there is nothing to correct.
            for correction in CORRECTIONS if staleness else ("sampler",):
                started_s = time.monotonic()
                rewards = one_run(policy, sampler, spec_of(loss, correction, steps, seed), staleness, correction)
                run = {"seed": seed, "loss": loss, "staleness": staleness, "correction": correction}
                run |= {"rewards": [round(reward, 4) for reward in rewards], "took_s": round(time.monotonic() - started_s, 1)}
                print(run, flush=True)
                runs.append(run)
    return runs


def table(result: dict[str, Any]) -> str:
    """Mean reward of the last steps, over seeds."""
    columns = [(lag, correction) for lag in STALENESS for correction in (CORRECTIONS if lag else ("sampler",))]
    found: dict[tuple[str, int, str], list[float]] = {}
    for run in result["runs"]:
        found.setdefault((run["loss"], run["staleness"], run["correction"]), []).append(float(np.mean(run["rewards"][-LAST_STEPS:])))
    lines = ["| loss | " + " | ".join(f"{lag}" if lag == 0 else f"{lag}, {correction}" for lag, correction in columns) + " |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    lines += [f"| `{loss}` | " + " | ".join(f"{np.mean(found[(loss, *column)]):.2f}" for column in columns) + " |" for loss in LOSSES]
    return "\n".join(lines)


def one_run(policy: Policy, sampler: "TinySampler", spec: TaskSpec, staleness: int, correction: str) -> list[float]:
    """The mean reward of each step's samples."""
    environment = build(spec.environment.name, dict(spec.environment.options))
    history = [initial_resident(policy, spec.name, spec)]
    rewards: list[float] = []
    for version in range(spec.steps):
        behind = min(staleness, version)
        groups = asyncio.run(sampler.groups(environment, history[version - behind], spec, version, behind))
        rewards.append(float(np.mean([trajectory.reward for group in groups for trajectory in group.trajectories])))
        trained = as_if_current(policy, history[-1], groups) if correction == "none" else groups
        history.append(train_step(policy, history[-1], trained, spec, budget_tokens=16_384).resident)
    return rewards


def as_if_current(policy: Policy, resident: Resident, groups: list[Group]) -> list[Group]:
    """The same trajectories with the log-probabilities that the policy at the start of the step gives them."""

    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    samples = [Sample(t.ids_T, t.sampled_T, t.sampler_logprobs_T, 0.0, 0.0) for t in trajectories]
    with torch.no_grad():
        packed = collate([(0, Row(sample.input_tokens, (sample,))) for sample in samples])
        scores = policy.scores(packed, [Adapted(resident.layout, resident.optimizer.params)])
    found = iter(scores.logprobs_N.split([trajectory.sampled_tokens for trajectory in trajectories]))

    def rescored(trajectory: Trajectory) -> Trajectory:
        logprobs_T = np.zeros(len(trajectory.ids_T), np.float32)
        logprobs_T[trajectory.sampled_T == 1] = next(found).numpy()
        return replace(trajectory, sampler_logprobs_T=logprobs_T)

    return [replace(group, trajectories=tuple(map(rescored, group.trajectories))) for group in groups]


class TinySampler:
    """A second copy of a tiny model, which samples all attempts of a step at once."""

    def __init__(self, model: str = MODEL) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32, attn_implementation="sdpa").eval()
        self._layers = adapt(self._model, LORA_TARGETS)
        self._chat = Chat.load(model)

    async def groups(self, environment: AnyEnvironment, resident: Resident, spec: TaskSpec, version: int, staleness: int) -> list[Group]:
        size, count = spec.algorithm.group_size, spec.algorithm.groups_per_step
        rows = range(version * count, (version + 1) * count)
        openings = [await environment.open(row, spec.seed) for row in rows]
        prompts = [self._prompt(opening.messages, spec) for opening in openings for _ in range(size)]
        replies = self._sampled(prompts, resident, torch.Generator().manual_seed(spec.seed * 100_003 + version))
        found: list[Group] = []
        for index, (row, opening) in enumerate(zip(rows, openings, strict=True)):
            members = []
            for member in range(size):
                prompt, (ids, logprobs) = prompts[index * size + member], replies[index * size + member]
                turn = await environment.step(opening.state, Reply(self._chat.text(ids), ids[-1] not in self._chat.stop_ids))
                assert isinstance(turn, Finish)
                members.append(
                    Trajectory(
                        member,
                        np.array(prompt + ids, np.int32),
                        np.array([0] * len(prompt) + [1] * len(ids), np.uint8),
                        np.array([0.0] * len(prompt) + logprobs, np.float32),
                        turn.reward,
                        truncated=ids[-1] not in self._chat.stop_ids,
                    )
                )
            found.append(Group(row, staleness, tuple(members)))
        return found

    def _prompt(self, messages: Sequence[ChatMessage], spec: TaskSpec) -> list[int]:
        request = TurnRequest(member=0, turn=0, transcript=TokenRecord(), messages=list(messages), state=b"")
        return self._chat.with_messages(request, spec.limits).ids_T().tolist()

    def _sampled(self, prompts: list[list[int]], resident: Resident, generator: torch.Generator) -> list[tuple[list[int], list[float]]]:
        """Sampled ids and log-probabilities of each prompt at temperature 1; prompts are padded on the left."""
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        replies: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
        open_, cache = set(range(len(prompts))), None
        products = by_one([Part(0, resident.layout, resident.optimizer.params)])
        with torch.no_grad(), attached(self._layers, products):
            for _ in range(NEW_TOKENS):
                output = self._model(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True)
                cache, log_all = output.past_key_values, output.logits[:, -1].log_softmax(-1)
                ids = torch.multinomial(log_all.exp(), 1, generator=generator)
                for row in list(open_):
                    token = int(ids[row, 0])
                    replies[row][0].append(token)
                    replies[row][1].append(float(log_all[row, token]))
                    if token in self._chat.stop_ids:
                        open_.discard(row)
                if not open_:
                    break
                mask = torch.cat([mask, torch.ones(len(prompts), 1, dtype=mask.dtype)], dim=1)
                positions = positions[:, -1:] + 1
        return replies


def spec_of(loss: str, correction: str, steps: int, seed: int) -> TaskSpec:
    raw = {
        "name": f"{loss}-{correction}",
        "tenant": "bench",
        "pool": "tiny",
        "steps": steps,
        "seed": seed,
        "environment": {"name": "reasoning_gym:letter_counting", "options": {"min_words": 1, "max_words": 2}},
        "sampling": {"max_tokens": NEW_TOKENS},
        "algorithm": {"group_size": 8, "groups_per_step": 8, "max_staleness": 0, "minibatches": 2, "advantage": "dr_grpo"} | LOSSES[loss],
        "correction": {"proximal": "start" if correction == "start" else "sampler"},
        "lora": {"rank": 8},
        "optimizer": {"learning_rate": 3e-3},
    }
    return parse_spec(raw)  # pyright: ignore[reportArgumentType]  # plain data


if __name__ == "__main__":
    main()

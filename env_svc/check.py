"""`python -m env_svc.check <name>`, or `marlaas envs check <name>`: tests whether an environment is fit to train on.

The environment is played with scripted replies: nonsense, and the gold answer if there is one. It is played in two processes, with
different orders of sets and different earlier episodes. Neither may matter, so the episodes, recorded as plain values, are compared.
Exit status: 0 if all checks pass, 1 if one fails, 2 if the environment cannot be built.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NoReturn

import msgpack

from common.runtime.output import ends_with_its_reader
from env_svc.calls import Continued, Failed, FinalTurn, OpenCall, Opened, Scored, StepCall, perform
from env_svc.contract import MAX_STATE_BYTES, Opening, Reply
from env_svc.errors import WrongOptions
from env_svc.execution.worker_process import WORKER_VARIABLES
from env_svc.registry import AnyEnvironment, build, find

PLAY_TIMEOUT_S = 900.0
MAX_SHOWN_CHARS = 400


CALL_TIMEOUT_S = 60.0


NONSENSE = {"nonsense": "xyzzy 17", "nothing": "", "very long": "word " * 20_000, "cut off": "The answer is"}
"""Scripted policy → its reply. `cut off` counts as ended by the token limit."""


GOLD = "gold"


@dataclass(frozen=True)
class ChatLine:
    """One message of a recorded conversation."""

    role: str
    text: str


@dataclass
class ScriptedEpisode:
    """One attempt at one row."""

    row: int
    policy: str
    said: list[ChatLine] = field(default_factory=list[ChatLine])
    states: list[str] = field(default_factory=list[str])
    """States, packed, in hexadecimal."""
    tools: int = 0
    reward: float | None = None
    components: dict[str, float] = field(default_factory=dict[str, float])
    failure: str | None = None

    @property
    def state_bytes(self) -> int:
        return max((len(state) // 2 for state in self.states), default=0)

    def as_plain(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class CheckResult:
    """One sentence about the environment, and whether its check has passed."""

    has_passed: bool
    text: str


@ends_with_its_reader()
def main() -> None:
    options = _arguments()
    try:
        environment = build(options.name, options.options)
    except WrongOptions as error:
        _end(f"{error}", 2)
    except Exception as error:  # a bug of the author, who needs the place
        traceback.print_exc()
        _end(f"{options.name} cannot be built: {type(error).__name__}: {error}", 2)
    rows = list(range(options.rows))
    if options.play:
        rows = rows[::-1] if options.backwards else rows
        sys.stdout.write(json.dumps(asyncio.run(_played(environment, options.name, rows, options.seed, options.turns))))
        return
    first, second = _in_processes(options, hash_seeds=("0", "0") if find(options.name).cpu_bound else ("1", "2"))
    findings = [
        *judge(first, second),
        asyncio.run(_check_round_trip(environment, options.seed)),
        CheckResult(True, "runs in worker processes" if environment.cpu_bound else "runs on the event loop: it must await everything slow"),
    ]
    sys.stdout.write(_trajectory(first) + "\n".join(f"{'ok   ' if one.has_passed else 'WRONG'} {one.text}" for one in findings) + "\n")
    sys.exit(0 if all(one.has_passed for one in findings) else 1)


def judge(first: Sequence[ScriptedEpisode], second: Sequence[ScriptedEpisode]) -> list[CheckResult]:
    """Results of comparing the episodes of two processes that played the same rows."""
    return [_check_finishes(first), _check_repeatable(first, second), _check_state_size(first), _check_gold(first)]


def _check_finishes(episodes: Sequence[ScriptedEpisode]) -> CheckResult:
    broken = [episode for episode in episodes if episode.failure is not None]
    if broken:
        return CheckResult(False, f"row {broken[0].row}, policy '{broken[0].policy}': {broken[0].failure}")
    rows, turns = {episode.row for episode in episodes}, sorted({len(episode.states) for episode in episodes})
    span = f"{turns[0]}" if len(turns) == 1 else f"{turns[0]} to {turns[-1]}"
    return CheckResult(True, f"{len(rows)} rows were opened, played and graded, whatever the policy said; turns: {span}")


def _check_repeatable(first: Sequence[ScriptedEpisode], second: Sequence[ScriptedEpisode]) -> CheckResult:
    there = {(episode.row, episode.policy): episode for episode in second}
    for episode in first:
        other = there.get((episode.row, episode.policy))
        if other is None or other.as_plain() != episode.as_plain():
            where = f"row {episode.row}, policy '{episode.policy}'"
            what = _difference(episode, other) if other else "was not played"
            return CheckResult(False, f"the same seed gives something else in another process: {where}: {what}")
    return CheckResult(True, "the same index, seed and replies give the same episode in another process, in any order")


def _difference(one: ScriptedEpisode, other: ScriptedEpisode) -> str:
    for name, value in one.as_plain().items():
        there = other.as_plain()[name]
        if value != there:
            return f"{name}: {str(value)[:100]!r} against {str(there)[:100]!r}"
    return "nothing"


def _check_state_size(episodes: Sequence[ScriptedEpisode]) -> CheckResult:
    largest = max((episode.state_bytes for episode in episodes), default=0)
    return CheckResult(largest <= MAX_STATE_BYTES, f"its largest state has {largest} bytes, of {MAX_STATE_BYTES} allowed")


def _check_gold(episodes: Sequence[ScriptedEpisode]) -> CheckResult:
    gold = {episode.row: episode for episode in episodes if episode.policy == GOLD and episode.reward is not None}
    if not gold:
        return CheckResult(True, "it has no gold answers (write `gold` to have their grading checked)")
    for episode in episodes:
        best = gold.get(episode.row)
        if best is None or episode.policy == GOLD or episode.reward is None:
            continue
        if episode.reward >= (best.reward or 0.0):
            text = f"row {episode.row}: the gold answer earns {best.reward:g}, policy '{episode.policy}' {episode.reward:g}"
            return CheckResult(False, text)
    rewards = sorted(episode.reward or 0.0 for episode in gold.values())
    return CheckResult(True, f"gold answers earn {rewards[0]:g} to {rewards[-1]:g}, and more than nonsense does")


async def _check_round_trip(environment: AnyEnvironment, seed: int) -> CheckResult:
    try:
        opening: Opening[Any] = await environment.open(0, seed)
        back = msgpack.unpackb(msgpack.packb(opening.state), strict_map_key=False)
        await environment.close()
    except Exception as error:
        return CheckResult(False, f"its state does not go through MessagePack: {type(error).__name__}: {error}")
    if back == opening.state:
        return CheckResult(True, "its state goes through MessagePack unchanged")
    return CheckResult(True, f"its state comes back from MessagePack as {str(back)[:100]} (tuples as lists), and is played like that")


def _trajectory(episodes: Sequence[ScriptedEpisode]) -> str:
    shown = next((episode for episode in episodes if episode.policy == GOLD), episodes[0])
    lines = [f"row {shown.row}, policy '{shown.policy}'" + (f", {shown.tools} tools (not played here)" if shown.tools else "")]
    lines += [f"  {said.role}: {_short(said)}" for said in shown.said]
    parts = ", ".join(f"{name} {value:g}" for name, value in shown.components.items())
    result = shown.failure if shown.reward is None else f"{shown.reward:g}"
    return "\n".join([*lines, f"  reward: {result}" + (f" ({parts})" if parts else "")]) + "\n\n"


def _short(said: ChatLine) -> str:
    text = said.text if len(said.text) <= MAX_SHOWN_CHARS else f"{said.text[:MAX_SHOWN_CHARS]}… ({len(said.text)} characters)"
    return text.replace("\n", "\n    ")


async def _played(environment: AnyEnvironment, name: str, rows: Sequence[int], seed: int, turns: int) -> list[dict[str, object]]:
    try:
        found = [await play_row(environment, name, row, seed, turns) for row in rows]
    finally:
        await environment.close()
    return [episode.as_plain() for episodes in found for episode in episodes]


def _in_processes(options: argparse.Namespace, hash_seeds: tuple[str, str]) -> tuple[list[ScriptedEpisode], list[ScriptedEpisode]]:
    shared = [sys.executable, "-m", "env_svc.check", options.name, "--options", json.dumps(options.options), "--rows", str(options.rows)]
    shared += ["--seed", str(options.seed), "--turns", str(options.turns), "--play"]
    found: list[list[ScriptedEpisode]] = []
    for hash_seed, more in zip(hash_seeds, ([], ["--backwards"]), strict=True):
        variables = os.environ | WORKER_VARIABLES | {"PYTHONHASHSEED": hash_seed}
        ended = subprocess.run([*shared, *more], env=variables, stdout=subprocess.PIPE, timeout=PLAY_TIMEOUT_S)
        if ended.returncode:
            _end(f"environment '{options.name}' ended the process that played it (exit status {ended.returncode})", 1)
        played = json.loads(ended.stdout)
        episodes = [ScriptedEpisode(**(one | {"said": [ChatLine(**said) for said in one["said"]]})) for one in played]
        found.append(sorted(episodes, key=lambda episode: episode.row))
    return found[0], found[1]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="marlaas envs check", description="Is this environment fit to train on?")
    parser.add_argument("name", help="an installed environment, or module:attribute")
    parser.add_argument("--options", default="{}", help="the options of the task, as JSON")
    parser.add_argument("--rows", type=int, default=8, help="prompts to play")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=16, help="maximum turns of an episode")
    parser.add_argument("--play", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--backwards", action="store_true", help=argparse.SUPPRESS)
    found = parser.parse_args()
    try:
        found.options = json.loads(found.options)
    except ValueError:
        found.options = None
    if not isinstance(found.options, dict):
        _end("--options is not a JSON object, such as '{\"size\": 3}'", 2)
    return found


def _end(text: str, status: int) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    sys.exit(status)


async def play_row(environment: AnyEnvironment, name: str, row: int, seed: int, max_turns: int) -> list[ScriptedEpisode]:
    """Play the row once with each scripted policy; gold first, if the environment has gold answers."""
    found = [await _play(environment, name, row, seed, max_turns, policy) for policy in (GOLD, *NONSENSE)]
    return [episode for episode in found if episode is not None]


async def _play(environment: AnyEnvironment, name: str, row: int, seed: int, max_turns: int, policy: str) -> ScriptedEpisode | None:
    """Play one episode; None if there is no gold answer to play."""
    episode = ScriptedEpisode(row, policy)
    outcome = await _timely(environment, name, OpenCall(row, seed))
    turn = 0
    while isinstance(outcome, Opened | Continued):
        episode.said += [ChatLine(message.role, message.content) for message in outcome.messages]
        episode.states.append(outcome.state.hex())
        if isinstance(outcome, Opened):
            episode.tools = len(outcome.tools) + len(outcome.tool_names)
        text = await _reply(environment, policy, outcome.state)
        if text is None:
            return None
        episode.said.append(ChatLine("assistant", text))
        turn += 1
        last = FinalTurn("turns", "score") if turn >= max_turns else None
        outcome = await _timely(environment, name, StepCall(row, outcome.state, Reply(text, truncated=policy == "cut off"), last=last))
    if isinstance(outcome, Scored):
        episode.reward, episode.components = outcome.reward, outcome.components
    else:
        episode.failure = outcome.reason
    return episode


async def _reply(environment: AnyEnvironment, policy: str, state: bytes) -> str | None:
    if policy == GOLD:
        return await environment.gold(msgpack.unpackb(state, strict_map_key=False))
    return NONSENSE[policy]


async def _timely(environment: AnyEnvironment, name: str, call: OpenCall | StepCall) -> Opened | Continued | Scored | Failed:
    try:
        async with asyncio.timeout(CALL_TIMEOUT_S):
            return await perform(environment, name, call)
    except TimeoutError:
        return Failed(f"did not answer within {CALL_TIMEOUT_S:g} s")


if __name__ == "__main__":
    main()

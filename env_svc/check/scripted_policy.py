"""Scripted policies of `marlaas envs check`: the gold answer where there is one, and nonsense.

Episodes are recorded as plain values, so that those of two processes can be compared.
"""

import asyncio
from dataclasses import asdict, dataclass, field

import msgpack

from env_svc.calls import Continued, Failed, FinalTurn, OpenCall, Opened, Scored, StepCall, perform
from env_svc.contract import Reply
from env_svc.registry import AnyEnvironment

CALL_TIMEOUT_S = 60.0
NONSENSE = {"nonsense": "xyzzy 17", "nothing": "", "very long": "word " * 20_000, "cut off": "The answer is"}
"""Replies by the policy's name. `cut off` was ended by the token limit."""
GOLD = "gold"


@dataclass(frozen=True)
class ChatLine:
    """One message of a conversation."""

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


async def play_row(environment: AnyEnvironment, name: str, row: int, seed: int, max_turns: int) -> list[ScriptedEpisode]:
    """The row played once by each policy; the gold one first, where the environment has gold answers."""
    found = [await _play(environment, name, row, seed, max_turns, policy) for policy in (GOLD, *NONSENSE)]
    return [episode for episode in found if episode is not None]


async def _play(environment: AnyEnvironment, name: str, row: int, seed: int, max_turns: int, policy: str) -> ScriptedEpisode | None:
    """None where there is no gold answer to play."""
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

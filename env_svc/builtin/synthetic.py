"""Environment `synthetic`: episodes of any length and latency, for benchmarks, without computation.

Each turn answers after a delay drawn from a distribution with the mean `latency_s`:

    fixed       always the mean
    uniform     mean · (1 - spread) to mean · (1 + spread)
    lognormal   exp(N(μ, spread)), μ such that the mean holds
    pareto      a long tail: density ~ x^-(spread + 1), spread > 1; at 1.5 one call in a hundred takes seven times the mean

Delays derive from row, seed, turn and reply, so a benchmark can be repeated.
"""

import asyncio
import math
import random
from typing import Literal, TypedDict

from env_svc.contract import ChatMessage, Continue, Environment, Finish, Opening, Reply, Turn, WrongOptions

Distribution = Literal["fixed", "uniform", "lognormal", "pareto"]
Rule = Literal["one", "coin", "short", "vowels"]
DEFAULT_SPREAD: dict[Distribution, float] = {"fixed": 0.0, "uniform": 0.5, "lognormal": 1.0, "pareto": 1.5}
VOWELS = frozenset("aeiou")


class SyntheticState(TypedDict):
    row: int
    seed: int
    turn: int


class Synthetic(Environment[SyntheticState]):
    """Episodes of `turns` turns, then a reward by the rule `reward`."""

    components = ("turns", "characters")

    def __init__(
        self,
        *,
        turns: int = 1,
        latency: Distribution = "fixed",
        latency_s: float = 0.0,
        spread: float | None = None,
        longest_s: float = 300.0,
        open_s: float = 0.0,
        reward: Rule = "coin",
    ) -> None:
        if turns < 1 or latency_s < 0 or open_s < 0:
            raise WrongOptions("environment 'synthetic': turns is at least 1, and no time is negative")
        self._spread = DEFAULT_SPREAD[latency] if spread is None else spread
        if (latency == "pareto" and self._spread <= 1) or (latency == "uniform" and not 0 <= self._spread <= 1) or self._spread < 0:
            raise WrongOptions(f"environment 'synthetic': spread {self._spread:g} is not possible for '{latency}'")
        self._turns, self._latency_s, self._longest_s, self._open_s = turns, latency_s, longest_s, open_s
        self._latency: Distribution = latency
        self._rule: Rule = reward

    async def open(self, index: int, seed: int) -> Opening[SyntheticState]:
        await asyncio.sleep(self._open_s)
        return Opening([ChatMessage(role="user", content=f"Row {index}. Say something.")], SyntheticState(row=index, seed=seed, turn=0))

    async def step(self, state: SyntheticState, reply: Reply) -> Turn[SyntheticState]:
        delay_s = self.delay_s(state, reply.text)
        if delay_s:
            await asyncio.sleep(delay_s)
        turn = state["turn"] + 1
        if turn < self._turns:
            return Continue(
                [ChatMessage(role="user", content=f"Turn {turn}. Go on.")], SyntheticState(row=state["row"], seed=state["seed"], turn=turn)
            )
        return Finish(self._reward(state, reply.text), {"turns": float(turn), "characters": float(len(reply.text))})

    def delay_s(self, state: SyntheticState, text: str) -> float:
        """Delay of the turn in seconds, `longest_s` at most."""
        chance = random.Random(f"{state['seed']}:{state['row']}:{state['turn']}:{text}")
        mean, spread = self._latency_s, self._spread
        match self._latency:
            case "fixed":
                drawn = mean
            case "uniform":
                drawn = mean * chance.uniform(1 - spread, 1 + spread)
            case "lognormal":
                drawn = mean * math.exp(chance.gauss(-(spread**2) / 2, spread))
            case "pareto":
                drawn = mean * (spread - 1) / spread * chance.paretovariate(spread)
        return min(self._longest_s, drawn)

    def _reward(self, state: SyntheticState, text: str) -> float:
        """one: always 1. coin: 0 or 1, by seed, row and reply. short: less for each character. vowels: their fraction of the letters."""
        match self._rule:
            case "one":
                return 1.0
            case "coin":
                return float(random.Random(f"{state['seed']}:{state['row']}:{text}").random() < 0.5)
            case "short":
                return 1.0 / (1 + len(text))
            case "vowels":
                letters = [letter for letter in text.lower() if letter.isalpha()]
                return sum(letter in VOWELS for letter in letters) / len(letters) if letters else 0.0

"""Environment `calculator`: arithmetic beyond a small model's ability, with the tool `calculator`.

Row i asks for one sum, difference or product. The policy may call the tool in as many turns as the task allows; its first reply
without a call is the answer. Only the answer is rewarded, whatever the policy asks of the tool.
"""

import operator
import random
import re
from collections.abc import Callable
from decimal import Decimal
from typing import TypedDict

from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn, WrongOptions

OPERATIONS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
MAX_DIGITS = 9
NUMBER = re.compile(r"[-−]?\d+(?:,\d{3})*(?:\.\d+)?")


class CalculatorState(TypedDict):
    answer: int


class Calculator(Environment[CalculatorState]):
    """`What is 347 * 82?` Reward 1 for a reply whose last number is the right one."""

    tools = ("calculator",)
    components = ("well_formed",)

    def __init__(self, min_digits: int = 2, max_digits: int = 3, signs: str = "+-*") -> None:
        if not 1 <= min_digits <= max_digits <= MAX_DIGITS:
            raise WrongOptions(
                f"min_digits is {min_digits} and max_digits {max_digits}: expected 1 <= min_digits <= max_digits <= {MAX_DIGITS}"
            )
        if not signs or set(signs) - set(OPERATIONS):
            raise WrongOptions(f"signs is '{signs}', expected some of {''.join(OPERATIONS)}")
        self._digits = range(min_digits, max_digits + 1)
        self._signs = signs

    async def open(self, index: int, seed: int) -> Opening[CalculatorState]:
        rng = random.Random(f"{seed}:{index}")
        left, right = (self._number(rng) for _ in range(2))
        sign = rng.choice(self._signs)
        question = ChatMessage(role="user", content=f"What is {left} {sign} {right}?")
        return Opening([question], CalculatorState(answer=OPERATIONS[sign](left, right)))

    async def step(self, state: CalculatorState, reply: Reply) -> Turn[CalculatorState]:
        usage = reply.usage
        # The share of well-formed calls; 0 without any, so that the curve shows whether calling is learned.
        well_formed = usage.calls / (usage.calls + usage.errors) if usage and usage.calls else 0.0
        return Finish(float(_last_number(reply.text) == state["answer"]), {"well_formed": well_formed})

    async def gold(self, state: CalculatorState) -> str | None:
        return str(state["answer"])

    def _number(self, rng: random.Random) -> int:
        digits = rng.choice(self._digits)
        return rng.randrange(10 ** (digits - 1), 10**digits)


def _last_number(text: str) -> Decimal | None:
    """The last number in a text, exactly as written: products have up to 18 digits, of which a float keeps 15."""
    found = NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "").replace("−", "-")) if found else None

"""LetterCount: how often is a letter in a word? A wrong answer is reported as wrong, and may be corrected."""

import random
from typing import TypedDict

from env_svc.contract import ChatMessage, Continue, Environment, Finish, Opening, Reply, Turn, WrongOptions

LETTERS = "abcdefgh"


class State(TypedDict):
    """What belongs to one episode."""

    count: int
    tries: int


class LetterCount(Environment[State]):
    """Options: `length`, letters of the word; `tries`, answers that are taken."""

    components = ("tries",)

    def __init__(self, length: int = 8, tries: int = 2) -> None:
        if not 1 <= length <= 64 or tries < 1:
            raise WrongOptions(f"length is {length}, expected 1 to 64; tries is {tries}, expected 1 or more")
        self._length, self._tries = length, tries

    async def open(self, index: int, seed: int) -> Opening[State]:
        chance = random.Random(f"{seed}:{index}")
        word, letter = "".join(chance.choices(LETTERS, k=self._length)), chance.choice(LETTERS)
        question = f"How often is the letter {letter} in {word}? Answer with a number only."
        return Opening([ChatMessage(role="user", content=question)], State(count=word.count(letter), tries=0))

    async def step(self, state: State, reply: Reply) -> Turn[State]:
        tries = state["tries"] + 1
        if reply.text.strip() == str(state["count"]):
            return Finish(1.0 / tries, {"tries": float(tries)})
        if tries >= self._tries:
            return Finish(0.0, {"tries": float(tries)})
        return Continue([ChatMessage(role="user", content="No. Try again.")], State(count=state["count"], tries=tries))

    async def gold(self, state: State) -> str:
        return str(state["count"])

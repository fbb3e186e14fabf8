"""The game that the OpenEnv servers of the tests play, whichever package serves it."""

import random


class Hidden:
    """A number from 1 to 9 to guess. 0.1 for every guess that is not it, 1 for the one that is; over after four."""

    def __init__(self, seed: int | None, vague: bool = False) -> None:
        chance = random.Random(None if vague else seed)
        self.number = chance.randint(1, 9)
        self.mood = chance.random() if vague else 0.0
        self.left = 4

    def start(self) -> str:
        return "Guess a number from 1 to 9."

    def guess(self, number: int) -> tuple[str, float, bool]:
        """The game's text, the reward, and whether it is over. Raises: ZeroDivisionError at 0."""
        1 / number
        self.left -= 1
        if number == self.number:
            return "Yes.", 1.0, True
        hint = "Higher." if number < self.number else "Lower."
        return f"{hint} {self.mood or ''}".strip(), 0.1, self.left == 0

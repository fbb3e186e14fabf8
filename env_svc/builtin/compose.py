"""Environment `compose`: programs of one-letter string functions, applied to a word from left to right.

    RL__ abcd        R reverses, L rotates: dcba, then cbad. A reply that ends with `cbad` is right

The base model `models/compose` knows every function alone and was never shown a program of two letters. Most pairs are for training;
the held-out ones are two diagonals of the table of pairs, so that each function is first in two of them and second in two. A pair belongs
to no split if another program of up to two letters has the same effect: a policy could answer by that program.

Row i is drawn from the task's seed and i. Evaluations have another seed, and so other words.
"""

import itertools
import random
from collections import Counter
from typing import Literal, TypedDict

from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn, WrongOptions

LETTERS = "abcdefgh"
WORD_LENGTH = 4
MAX_PROGRAM = 4
"""Number of letters of the longest program. Shorter programs are padded, so that the word always begins at the same position."""
FILLER = "_"

FUNCTIONS = {
    "W": "1++ 2 3++ 4",
    "L": "2 3 4 1",
    "T": "2 3 4 1+",
    "D": "1 1 2 3",
    "S": "4 2 3 1",
    "R": "4 3 2 1",
    "K": "1 3 2 4",
    "A": "a 2 3 4",
    "F": "1+ 2+ 3 4",
    "N": "1 2 3- 4-",
}
"""Function → the letters of its result. A letter is a constant, or a position in the word, from 1, whose letter is taken. Each + or - moves
it one step forward or back in LETTERS, whose ends are joined."""
HELD_OUT_DIAGONALS = (3, 6)
"""A pair of functions number i and j is held out if j − i, modulo the number of functions, is one of these."""

Split = Literal["train", "held_out", "longer", "single"]
Rule = Literal["outcome", "coin"]
Letter = tuple[int | None, int]
"""(position in the word, from 0, and steps in the alphabet), or (None and the number of a constant letter)."""
Effect = tuple[Letter, ...]


def _letter(text: str) -> Letter:
    steps = text.count("+") - text.count("-")
    return (int(text[0]) - 1, steps % len(LETTERS)) if text[0].isdigit() else (None, LETTERS.index(text[0]))


EFFECTS: dict[str, Effect] = {name: tuple(map(_letter, places.split())) for name, places in FUNCTIONS.items()}
NOTHING: Effect = tuple((place, 0) for place in range(WORD_LENGTH))


def effect(program: str) -> Effect:
    """What the program does to any word. Two programs have the same result on all words exactly if their effects are equal."""
    found = NOTHING
    for name in program:
        found = tuple(_moved(found[place], steps) if place is not None else (None, steps) for place, steps in EFFECTS[name])
    return found


def run(program: str, word: str) -> str:
    """Result of the program on a word."""
    return "".join(
        LETTERS[(steps if place is None else LETTERS.index(word[place]) + steps) % len(LETTERS)] for place, steps in effect(program)
    )


def _moved(letter: Letter, steps: int) -> Letter:
    place, before = letter
    return place, (before + steps) % len(LETTERS)


def programs(length: int) -> list[str]:
    """All programs of `length` letters."""
    return ["".join(names) for names in itertools.product(FUNCTIONS, repeat=length)]


def own_pairs() -> list[str]:
    """Pairs whose effect no other program of up to two letters has."""
    meant = Counter(effect(program) for length in range(3) for program in programs(length))
    return [pair for pair in programs(2) if meant[effect(pair)] == 1]


def is_held_out(pair: str) -> bool:
    first, second = map(list(FUNCTIONS).index, pair)
    return (second - first) % len(FUNCTIONS) in HELD_OUT_DIAGONALS


def programs_of(split: Split) -> list[str]:
    """Programs of a split, in a fixed order."""
    match split:
        case "train":
            return [pair for pair in own_pairs() if not is_held_out(pair)]
        case "held_out":
            return [pair for pair in own_pairs() if is_held_out(pair)]
        case "single":
            return list(FUNCTIONS)
        case "longer":
            shorter = {effect(program) for length in range(3) for program in programs(length)}
            return [program for program in programs(3) if effect(program) not in shorter]


def question(program: str, word: str) -> str:
    return f"{program.ljust(MAX_PROGRAM, FILLER)} {word}"


def solution(program: str, word: str) -> str:
    """Each function of the program with the word after it, as the base model writes them."""
    return "".join(name + run(program[: place + 1], word) for place, name in enumerate(program))


def random_word(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(WORD_LENGTH))


class ComposeState(TypedDict):
    program: str
    word: str


class Compose(Environment[ComposeState]):
    """Reward 1 for a reply that ended by itself and whose last letters are the program's result; the letters before are free.

    `single_share` of the prompts are programs of one letter, whatever the split. With `reward = "coin"`, for controls, the reward is 1 for
    `coin_rate` of all replies, by a hash of prompt and reply, independent of the result; the component `correct` keeps its meaning.
    """

    components = ("correct",)

    def __init__(self, *, split: Split = "train", single_share: float = 0.0, reward: Rule = "outcome", coin_rate: float = 0.25) -> None:
        if not 0 <= single_share <= 1 or not 0 <= coin_rate <= 1:
            raise WrongOptions(f"single_share is {single_share:g} and coin_rate {coin_rate:g}: both are shares, from 0 to 1")
        self._programs, self._single_share = programs_of(split), single_share
        self._rule, self._coin_rate = reward, coin_rate

    async def open(self, index: int, seed: int) -> Opening[ComposeState]:
        rng = random.Random(f"{seed}:{index}")
        is_single = rng.random() < self._single_share
        program, word = rng.choice(list(FUNCTIONS) if is_single else self._programs), random_word(rng)
        return Opening([ChatMessage(role="user", content=question(program, word))], ComposeState(program=program, word=word))

    async def step(self, state: ComposeState, reply: Reply) -> Turn[ComposeState]:
        correct = float(not reply.truncated and reply.text[-WORD_LENGTH:] == run(state["program"], state["word"]))
        if self._rule == "outcome":
            return Finish(correct, {"correct": correct})
        coin = random.Random(f"{state['program']}:{state['word']}:{reply.text}").random() < self._coin_rate
        return Finish(float(coin), {"correct": correct})

    async def gold(self, state: ComposeState) -> str | None:
        return solution(state["program"], state["word"]) if self._rule == "outcome" else None

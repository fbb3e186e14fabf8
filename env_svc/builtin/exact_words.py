"""Environment `exact_words`: "Describe a lighthouse in exactly 4 words."

The form of a reply is graded and not its sense: it must end by itself and have as many words as the prompt asks for. A base model that
answers in whole sentences earns little, but its sampled attempts earn different rewards.

Topics of the split `held_out` are in no prompt of `train`. Row i is one of all pairs of topic and number, in an order drawn from the task's
seed; after the last pair the order repeats.
"""

import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypedDict

from env_svc.contract import ChatMessage, Environment, Finish, Opening, Reply, Turn, WrongOptions

TOPICS = tuple(
    """
    a lighthouse|the moon|an old bridge|a rainy day|the desert|a violin|winter|a bakery|a lion|the ocean|a library|a train ride|a garden
    a storm|the sun|a good friend|a mirror|a castle|the forest|an owl|a market|a sailing boat|a clock|the mountains|a candle|a river
    a teacher|a football match|the night sky|a snowman|a spider|an airport|a honey bee|a farm|summer|a museum|the rain|a camera|a horse
    a dream|an island|a volcano|a cup of tea|a letter|a dancer|a birthday|an elephant|a hospital|the wind|a wooden chair|a doctor|a map
    a song|a waterfall|a kitchen|a bicycle|an apple tree|a city at night|a cave|a rainbow|a sword|a river boat|the morning|a wedding
    a cat|a telescope|a beach|a pirate|a robot|a rose|a shadow|an old coat|a party|a king|a parrot|a tent|a school|a drum|a painter
    a snake|a tower|a sandwich|a village|a whale|autumn|a lamp|a computer|a fisherman|a valley|a ghost|a star|a tiger|a piano|a cloud
    a bus stop|a dog
    """.replace("\n", "|").split("|")
)
HELD_OUT_EVERY = 3
"""Every third topic is held out."""
COUNTS = (2, 4, 6)
MAX_COUNT = 100
NEARLY = 0.5
"""Maximum reward of a reply with another number of words than asked for."""

Split = Literal["train", "held_out"]


class ExactWordsState(TypedDict):
    count: int


class ExactWords(Environment[ExactWordsState]):
    """Reward 1 for a reply of exactly as many words as asked for; with n words in place of k, half of 1 − |n − k| / k, and not below 0.

    A reply that was cut earns 0.
    """

    components = ("exact", "words")

    def __init__(self, *, split: Split = "train", counts: Sequence[int] = COUNTS) -> None:
        if not counts or not all(1 <= count <= MAX_COUNT for count in counts):
            raise WrongOptions(f"counts is {list(counts)}: one number or more, from 1 to {MAX_COUNT}")
        self._prompts = [(topic, count) for topic in topics_of(split) for count in counts]
        self._order = lru_cache(maxsize=8)(self._drawn)

    async def open(self, index: int, seed: int) -> Opening[ExactWordsState]:
        topic, count = self._order(seed)[index % len(self._prompts)]
        return Opening([ChatMessage(role="user", content=question(topic, count))], ExactWordsState(count=count))

    async def step(self, state: ExactWordsState, reply: Reply) -> Turn[ExactWordsState]:
        words = words_in(reply.text)
        return Finish(
            0.0 if reply.truncated else reward(words, state["count"]),
            {"exact": float(not reply.truncated and words == state["count"]), "words": float(words)},
        )

    async def gold(self, state: ExactWordsState) -> str | None:
        return " ".join(["word"] * state["count"])

    def _drawn(self, seed: int) -> list[tuple[str, int]]:
        return random.Random(seed).sample(self._prompts, len(self._prompts))


def topics_of(split: Split) -> list[str]:
    """Topics of a split, in one order."""
    topics = [topic.strip() for topic in TOPICS if topic.strip()]
    return [topic for place, topic in enumerate(topics) if (place % HELD_OUT_EVERY == 0) == (split == "held_out")]


def question(topic: str, count: int) -> str:
    return f"Describe {topic} in exactly {count} {'word' if count == 1 else 'words'}."


def words_in(text: str) -> int:
    """Number of parts between blanks with a letter or digit, so that a lone dash is no word."""
    return sum(any(letter.isalnum() for letter in part) for part in text.split())


def reward(words: int, count: int) -> float:
    """Reward of a reply that ended by itself. `words`: its number of words; `count`: the number asked for."""
    return 1.0 if words == count else NEARLY * max(0.0, 1 - abs(words - count) / count)

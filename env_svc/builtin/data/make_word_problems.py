"""Generates `word_problems.jsonl`: short stories with small numbers, in the format of GSM8K.

python env_svc/builtin/data/make_word_problems.py      # the same 400 rows each time
"""

import json
import random
from pathlib import Path

ROWS = 400
NAMES = ("Ada", "Ben", "Chen", "Dora", "Emil", "Fatou", "Goran", "Hana")
THINGS = ("apples", "books", "coins", "eggs", "maps", "nuts", "pens", "stamps")


def main() -> None:
    chance = random.Random(0)
    rows: dict[str, str] = {}
    while len(rows) < ROWS:
        question, answer = chance.choice((bought, shared, packed, saved))(chance)
        rows[question] = answer
    lines = [json.dumps({"question": question, "answer": answer}) for question, answer in rows.items()]
    Path(__file__).with_name("word_problems.jsonl").write_text("\n".join(lines) + "\n")


def bought(chance: random.Random) -> tuple[str, str]:
    name, thing, first, more = chance.choice(NAMES), chance.choice(THINGS), chance.randint(2, 60), chance.randint(2, 39)
    total = first + more
    question = f"{name} has {first} {thing} and buys {more} more. How many {thing} does {name} have now?"
    return question, f"{name} has {first} + {more} = <<{first}+{more}={total}>>{total} {thing}.\n#### {total}"


def shared(chance: random.Random) -> tuple[str, str]:
    name, thing, each, friends = chance.choice(NAMES), chance.choice(THINGS), chance.randint(2, 12), chance.randint(2, 9)
    total = each * friends
    question = f"{name} shares {total} {thing} equally among {friends} friends. How many does each friend get?"
    return question, f"Each gets {total} / {friends} = <<{total}/{friends}={each}>>{each} {thing}.\n#### {each}"


def packed(chance: random.Random) -> tuple[str, str]:
    thing, boxes, each, loose = chance.choice(THINGS), chance.randint(2, 9), chance.randint(2, 12), chance.randint(1, 9)
    full, total = boxes * each, boxes * each + loose
    question = f"There are {boxes} boxes with {each} {thing} each, and {loose} loose ones. How many {thing} are there?"
    in_boxes = f"In boxes: {boxes} * {each} = <<{boxes}*{each}={full}>>{full}."
    with_loose = f"With the loose ones: {full} + {loose} = <<{full}+{loose}={total}>>{total}."
    return question, f"{in_boxes} {with_loose}\n#### {total}"


def saved(chance: random.Random) -> tuple[str, str]:
    name, weeks, each, price = chance.choice(NAMES), chance.randint(2, 9), chance.randint(3, 12), chance.randint(1, 5)
    total, left = weeks * each, weeks * each - price
    question = f"{name} saves {each} dollars a week for {weeks} weeks, then spends {price}. How many dollars are left?"
    answer = f"Saved: {weeks} * {each} = <<{weeks}*{each}={total}>>{total}. Left: {total} - {price} = <<{total}-{price}={left}>>{left}."
    return question, f"{answer}\n#### {left}"


if __name__ == "__main__":
    main()

"""Generates valley.jsonl and valley_questions.jsonl: `python make_valley.py`.

An invented valley, so that no model knows its answers: villages, rivers, people, bridges, mills and festivals, a document for each.
A question names one of these and asks for another. Two or three documents lead to the answer, which is in the last of them.
"""

import json
import random
from pathlib import Path
from typing import Any

SEED = 17
FIRST = "Anor Belka Ciro Dunja Ewin Fara Goran Hilde Ivo Jorin Katla Lumo Mirel Nando Oda Pavo Quila Runa Sorin Tamsin Uldo Vesna Wim Yara".split()
LAST = "Ashdown Brack Corvel Dray Ellin Ferro Garrow Hask Imre Jolt Kestrel Lund Morrow Nesh Orla Pell".split()
VILLAGES = (
    "Aldermoor Birchwick Coldharbour Dunmere Eastlow Fenbridge Gorsley Hartsend Inglefold Juniper Kettlewell Larkhope Mossford Netherby "
    "Oakhanger Pinestead Quarley Rushmere Stonegate Thornby"
).split()
RIVERS = {"Arle": "Lake Iven", "Brenn": "Lake Iven", "Corra": "Lake Sulm", "Dove": "Lake Sulm", "Esk": "Lake Marrin", "Feld": "Lake Marrin"}
CRAFTS = "clockmaker glassblower beekeeper shipwright weaver potter cooper printer bellfounder luthier".split()
BIRDS = "Heron Swan Kestrel Wren Raven Plover Sparrow Curlew Dipper Crane Finch Lark".split()
FEASTS = "Lanterns Apples Snow Kites Bells Honey Masks Boats Salt Wool".split()

Fact = dict[str, str]


def world(rng: random.Random) -> dict[str, dict[str, Fact]]:
    """Facts of the valley: kind → name → facts."""
    villages = {name: {"river": rng.choice(list(RIVERS)), "founded": str(rng.randint(1180, 1790))} for name in VILLAGES}
    names = rng.sample([f"{first} {last}" for first in FIRST for last in LAST], 60)
    people = {name: {"born": rng.choice(VILLAGES), "craft": rng.choice(CRAFTS), "year": str(rng.randint(1790, 1890))} for name in names}
    for name, person in people.items():
        person["teacher"] = rng.choice([other for other in names if other != name])
    bridges = {f"{bird} Bridge": {"builder": rng.choice(names), "village": rng.choice(VILLAGES)} for bird in BIRDS}
    mills = {f"{bird} Mill": {"owner": rng.choice(names), "village": rng.choice(VILLAGES)} for bird in rng.sample(BIRDS, 8)}
    feasts = {f"Feast of {feast}": {"founder": rng.choice(names), "village": rng.choice(VILLAGES)} for feast in FEASTS}
    return {"villages": villages, "people": people, "bridges": bridges, "mills": mills, "feasts": feasts}


def documents(known: dict[str, dict[str, Fact]]) -> list[Fact]:
    texts = {name: f"The river {name} rises in the hills and flows into {lake}." for name, lake in RIVERS.items()}
    for name, fact in known["villages"].items():
        texts[name] = f"{name} is a village on the river {fact['river']}, founded in {fact['founded']}."
    for name, fact in known["people"].items():
        texts[name] = f"{name}, a {fact['craft']}, was born in {fact['born']} in {fact['year']} and was taught by {fact['teacher']}."
    for name, fact in known["bridges"].items():
        texts[name] = f"The {name} stands near {fact['village']}. It was built by {fact['builder']}."
    for name, fact in known["mills"].items():
        texts[name] = f"The {name} near {fact['village']} belonged to {fact['owner']}."
    for name, fact in known["feasts"].items():
        texts[name] = f"The {name} is held in {fact['village']} every year. It was begun by {fact['founder']}."
    return [{"title": title, "text": text} for title, text in sorted(texts.items())]


def questions(known: dict[str, dict[str, Fact]]) -> list[dict[str, Any]]:
    villages, people = known["villages"], known["people"]
    found: list[dict[str, Any]] = []

    def ask(question: str, answer: str, *path: str) -> None:
        found.append({"question": question, "answer": answer, "path": list(path)})

    for kind, role, who in (("bridges", "builder", "built the"), ("mills", "owner", "owned the"), ("feasts", "founder", "began the")):
        for name, fact in known[kind].items():
            person = fact[role]
            born, teacher = people[person]["born"], people[person]["teacher"]
            ask(f"In which village was the person born who {who} {name}?", born, name, person)
            ask(f"Who taught the person who {who} {name}?", teacher, name, person)
            ask(
                f"On which river lies the village near the {name}?" if kind != "feasts" else f"On which river is the {name} held?",
                villages[fact["village"]]["river"],
                name,
                fact["village"],
            )
            ask(f"What was the craft of the teacher of the person who {who} {name}?", people[teacher]["craft"], name, person, teacher)
            ask(
                f"In which year was the village founded where the person was born who {who} {name}?",
                villages[born]["founded"],
                name,
                person,
                born,
            )
            ask(
                f"Into which lake flows the river of the village where the person was born who {who} {name}?",
                RIVERS[villages[born]["river"]],
                name,
                person,
                born,
                villages[born]["river"],
            )
    return found


def main() -> None:
    known = world(random.Random(SEED))
    folder = Path(__file__).parent
    for file, rows in (("valley.jsonl", documents(known)), ("valley_questions.jsonl", questions(known))):
        (folder / file).write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()

"""Worked solutions as school-maths sets have them, made from a seed, with right and wrong ways to state their answer."""

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Solved:
    solution: str
    answer: int

    @property
    def gold(self) -> str:
        return f"{self.solution}\n#### {self.answer:,}"


TEMPLATES: tuple[Callable[[int, int, int], tuple[str, int]], ...] = (
    lambda a, b, c: (f"She pays ${a} for each of {b} pens: {a}*{b} = $<<{a}*{b}={a * b}>>{a * b}.\nWith ${c} of tax it is $", a * b + c),
    lambda a, b, c: (f"{a}% of {100 * b} people is {a}/100*{100 * b} = <<{a}/100*{100 * b}={a * b}>>{a * b}, and {c}% left", a * b),
    lambda a, b, c: (f"Let $x$ be the price. Then $x + {a} = {a + b}$, so $x = {b}$, and the answer to the first part is {a}.", b),
    lambda a, b, c: (f"The first answer was {c}, but that counted \\({a}\\) twice. {a} + {b} = <<{a}+{b}={a + b}>>{a + b} apples", a + b),
    lambda a, b, c: (f"- {a} boxes\n- {b * 1000} nails each\nTogether $${a} \\times {b * 1000}$$", a * b * 1000),
    lambda a, b, c: (
        f"**Step 1:** {a}:{b} is the ratio.\n**Step 2:** $\\frac{{{a * c}}}{{{a}}} = {c}$, so ${c} \\cdot {b}$ dollars",
        b * c,
    ),
    lambda a, b, c: (f"He had ${a + b}.00 and spent ${a}.00 [{c}% of it on books], so ${a + b} - ${a} = ${b}", b),
    lambda a, b, c: (f"The answer is what is left: {a * b} - {b} = {a * b - b} cards in {c} albums", a * b - b),
)

RIGHT: tuple[Callable[[Solved], str], ...] = (
    lambda solved: solved.gold,
    lambda solved: f"{solved.solution}\n#### {solved.answer}",
    lambda solved: f"{solved.solution}\nThe answer is {solved.answer}.",
    lambda solved: f"{solved.solution}\n\n**Final answer:** ${solved.answer:,}$",
    lambda solved: f"{solved.solution}\n$$\\boxed{{{solved.answer}}}$$",
)
WRONG: tuple[Callable[[Solved], str], ...] = (
    lambda solved: f"{solved.solution}\n#### {solved.answer + 1}",
    lambda solved: f"{solved.solution}\n#### {solved.answer}\nNo, the answer is {solved.answer * 10 + 3}.",
    lambda solved: f"{solved.solution}\nThe answer is {solved.answer}, I think.\n#### -{solved.answer}",
    lambda solved: f"{solved.solution}\nSo \\boxed{{{solved.answer}}}, or rather \\boxed{{{solved.answer + 7}}}.",
    lambda solved: f"{solved.solution}\n**Answer:** {solved.answer}.5",
)


def word_problems(count: int, seed: int) -> list[Solved]:
    random_ = random.Random(seed)
    made = (random_.choice(TEMPLATES)(random_.randint(2, 99), random_.randint(2, 99), random_.randint(2, 99)) for _ in range(count))
    return [Solved(solution, answer) for solution, answer in made]

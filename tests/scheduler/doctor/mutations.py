"""Mutation tests of the doctor: `python -m tests.scheduler.doctor.mutations` changes each rule in every small way and runs its tests.

It prints a table; with `--write` it replaces the one in docs/durability.md. A mutant is a copy of the rule's source with one
change: an operator, a bound, one side of AND or OR, a kind of join. Its tests are those of `test_doctor.py`: the finished world has no
violation, and each breakage of the rule is reported. A mutant that passes them all survives. EQUIVALENT lists survivors that
are the same rule in other words, each with its reason.
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from scheduler_svc.doctor import blob_rules, runner
from tests.scheduler.doctor.code_mutants import try_modules
from tests.scheduler.doctor.mutant import MutantCounts
from tests.scheduler.doctor.query_mutants import try_queries
from tests.support.paths import ROOT
from tests.support.postgres import migrated, running_postgres
from tests.support.scheduler.finished import Finished, finish

PAGE = ROOT / "docs" / "durability.md"
BEGIN, END = "<!-- doctor's mutants: begin -->", "<!-- doctor's mutants: end -->"

MEMBERS = "every group has one trajectory for each member"
ENDS = "each step, and each task's end, has one event"
EQUIVALENT: dict[tuple[str, str], str] = {
    (MEMBERS, "HAVING count(j.member) <> → <"): "more different numbers than fit include one that is out of bounds",
    (MEMBERS, "ber) <> t.group_size OR min(j.member) <> → <"): "where no number is below 0 and the count is right, 0 is one of them",
    (MEMBERS, "R min(j.member) <> 0 OR max(j.member) <> → >"): "from 0 on, as many different numbers reach the last one",
    ("a finished task trained every step, or says what stopped it", "WHERE state = 'finished' AND version <> → <"):
        "a constraint forbids a version beyond the steps",
    ("an evaluation is over when all of its groups are", "') <> (count(*) FILTER (WHERE g.state <> → >"):
        "the other states come after 'ended' in the alphabet",
    ("no trained or waiting group is staler than its task allows", "WHERE g.protocol IS NULL AND g.state <> → <"):
        "the other states come before 'void' in the alphabet",
    (ENDS, "hed', 'cancelled', 'failed', 'rejected') → )"): "a rejected task was never accepted, so that nothing ends it",
    (ENDS, "shed', 'cancelled', 'failed', 'rejected' → 'no rejected'"): "a rejected task was never accepted, so that nothing ends it",
    (blob_rules.ORPHANS,
     "return name is not None and task is not None and task.include(blob.name, int(name['version']))"
     " → return task is not None and task.include(blob.name, int(name['version']))"):
        "a name that is not a blob's has no task either",
}  # fmt: skip
"""(rule, change) → why no test can catch it."""


async def every_mutant(made: Finished, folder: Path) -> dict[str, MutantCounts]:
    counts = {rule: MutantCounts() for rule in runner.RULES}
    await try_queries(made.database(), counts)
    await try_modules(made, folder, counts)
    return counts


def unexpected(counts: dict[str, MutantCounts]) -> list[str]:
    """Survivors that are not EQUIVALENT, and rules without a mutant."""
    survived = [(rule, one.change) for rule, each in counts.items() for one in each.survived]
    survivors = [f"{rule}: {change}" for rule, change in survived if (rule, change) not in EQUIVALENT]
    return survivors + [f"{rule}: no mutant; is its function in RULES_OF?" for rule, each in counts.items() if not each.made]


def table(counts: dict[str, MutantCounts]) -> str:
    lines = ["| rule | mutants | caught | equivalent |", "| --- | ---: | ---: | ---: |"]
    for rule, each in counts.items():
        lines.append(f"| {rule} | {each.made} | {each.caught} | {len(each.survived)} |")
    caught, survived = (sum(column) for column in zip(*((t.caught, len(t.survived)) for t in counts.values()), strict=True))
    return "\n".join([*lines, f"| all {len(counts)} | {caught + survived} | {caught} | {survived} |"])


def written(page: str, made: str) -> str:
    """The page with the table in its place."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"


async def _run(folder: Path) -> dict[str, MutantCounts]:
    with running_postgres(folder) as port:
        made = await finish(port, migrated(port), folder / "finished")
        return await every_mutant(made, folder)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="marlaas-mutants-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL does not run as root
        counts = asyncio.run(_run(Path(folder)))
    made = table(counts)
    print(made, *unexpected(counts), sep="\n")
    if "--write" in sys.argv:
        PAGE.write_text(written(PAGE.read_text(), made))
    sys.exit(bool(unexpected(counts)))


if __name__ == "__main__":
    main()

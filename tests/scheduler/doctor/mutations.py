"""Breaks each rule of the doctor on purpose, in every small way, and looks whether the rule's tests notice.

`python -m tests.scheduler.doctor.mutations` prints a table; with `--write` it replaces the one in docs/durability.md. A mutant is a copy of
the rule's source with one change: an operator, a bound, one side of AND or OR, a kind of join. Its tests are those of
`test_doctor.py`: the world at rest must be clean, and the rule must be named after each of its breakages. A mutant that
passes them all has survived. Survivors that are the same rule in other words are listed in EQUIVALENT with the reason.
"""

import ast
import asyncio
import copy
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from inspect import getsource
from pathlib import Path
from types import ModuleType

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.doctor import blob_rules, database_rules, runner, stream_rules
from scheduler_svc.doctor.runner import Depth
from scheduler_svc.store.database import Database
from tests.conftest import migrated, running_postgres
from tests.scheduler.doctor import breakages
from tests.scheduler.finished import AT_REST, Copy, Finished, copied, finish

PAGE = Path(__file__).parents[3] / "docs" / "durability.md"
BEGIN, END = "<!-- doctor's mutants: begin -->", "<!-- doctor's mutants: end -->"

PATIENCE_S = 60.0
MEMBERS = "every group has one trajectory for each member"
ENDS = "each step, and each task's end, was told once"
EQUIVALENT: dict[tuple[str, str], str] = {
    (MEMBERS, "HAVING count(j.member) <> → <"): "more different numbers than fit include one that is out of bounds",
    (MEMBERS, "ber) <> t.group_size OR min(j.member) <> → <"): "where none is below 0 and the count is right, 0 is one of them",
    (MEMBERS, "R min(j.member) <> 0 OR max(j.member) <> → >"): "from 0 on, as many different numbers reach the last one",
    ("a finished task trained every step, or says what stopped it", "WHERE state = 'finished' AND version <> → <"):
        "a constraint forbids a version beyond the steps",
    ("an evaluation is over when all of its groups are", "') <> (count(*) FILTER (WHERE g.state <> → >"):
        "the other states come after 'ended' in the alphabet",
    ("nothing trained or waiting is staler than its task allows", "WHERE g.state <> → <"):
        "the other states come before 'void' in the alphabet",
    (ENDS, "hed', 'cancelled', 'failed', 'rejected') → )"): "a rejected task was never accepted, so that nothing ends it",
    (ENDS, "shed', 'cancelled', 'failed', 'rejected' → 'no rejected'"): "a rejected task was never accepted, so that nothing ends it",
    (blob_rules.ORPHANS,
     "return name is not None and task is not None and task.include(blob.name, int(name['version']))"
     " → return task is not None and task.include(blob.name, int(name['version']))"):
        "a name that is none of a blob has no task either",
}  # fmt: skip
"""(rule, change) → why no test can notice it."""


@dataclass(frozen=True)
class Mutant:
    rule: str
    """Or the function that judges it."""
    change: str
    """What differs, as `before → after`."""
    source: str
    """Of the query, or of the module."""


@dataclass
class Tally:
    """Of one rule."""

    caught: int = 0
    survived: list[Mutant] = field(default_factory=list)

    @property
    def made(self) -> int:
        return self.caught + len(self.survived)


# ------------------------------------------------------------------------------------------------------ rules in SQL

EXCHANGES: list[tuple[str, str]] = [
    (r"<>", "<"),
    (r"<>", ">"),
    (r"(?<![<>=])= ", "<> "),
    (r"<(?![>=])", ">"),
    (r"(?<![<])>(?!=)", "<"),
    (r"\bOR\b", "AND"),
    (r"(?<!BETWEEN 0 )\bAND\b", "OR"),
    (r"\bFULL JOIN\b", "LEFT JOIN"),
    (r"\bFULL JOIN\b", "RIGHT JOIN"),
    (r"\bLEFT JOIN\b", "JOIN"),
    (r"\bIS DISTINCT FROM\b", "<>"),
    (r"\bNOT EXISTS\b", "EXISTS"),
    (r" - 1\b", ""),
    (r" \+ 1\b", ""),
    (r"'1 minute'", "'1 year'"),
    (r"coalesce\(([^(),]+), -?\d+\)", r"\1"),
    (r"coalesce\((sum\([^()]*\)), 0\)", r"\1"),
    (r"\bBETWEEN 0 AND\b", "<="),
    (r"count\(DISTINCT ", "count("),
    (r"\bIN \('(\w+)', ", "IN ('"),
    (r", '\w+'\)", ")"),
    (r"\bmin\(", "max("),
    (r"\bmax\(", "min("),
    (r"\bNOT LIKE\b", "LIKE"),
    (r"\babs\(", "("),
    (r" AND [\w.\"]+ = [\w.\"]+(?: [+-] 1)?(?=[ \n)]|$)", ""),
    (r"\bUNION ALL\b.*", ""),
    (r"^.*\bUNION ALL\b", ""),
    (r"\bFILTER \(WHERE [^()]*\)", ""),
    (r"'(\w+)'", r"'no \1'"),
]
"""Pattern and replacement, each place on its own."""


def shown(query: str) -> set[int]:
    """The places of what the outermost SELECT only shows: columns that say where, and decide nothing."""
    places: set[int] = set()
    depth, is_shown = 0, False
    for match in re.finditer(r"[()]|\bSELECT\b|\bFROM\b|.", query, re.DOTALL):
        depth += {"(": 1, ")": -1}.get(match[0], 0)
        is_shown = {"SELECT": True, "FROM": False}.get(match[0], is_shown) if depth == 0 else is_shown
        if is_shown:
            places.update(range(*match.span()))
    return places


def mutants_of_query(rule: str, query: str) -> Iterator[Mutant]:
    seen, excluded = {query}, shown(query)
    for pattern, replacement in EXCHANGES:
        for match in re.finditer(pattern, query, re.DOTALL):
            if match.start() in excluded and "UNION" not in pattern:
                continue
            after = match.expand(replacement)
            source = query[: match.start()] + after + query[match.end() :]
            if source not in seen:
                seen.add(source)
                before = query[: match.end()].rpartition("\n")[2][-40:] if "UNION" not in pattern else "UNION ALL …"
                yield Mutant(rule, " ".join(f"{before} → {after}".split()), source)


async def rows(connection: AsyncConnection, query: str) -> bool | None:
    """Whether the query finds something; None when it is none."""
    outer = await connection.begin_nested()
    try:
        return (await connection.execute(text(f"SELECT * FROM ({query}) AS broken LIMIT 1"))).first() is not None
    except DBAPIError:
        return None
    finally:
        await outer.rollback()


async def try_queries(url: str, tallies: dict[str, Tally]) -> None:
    """Every mutant of every query; one that PostgreSQL refuses is none."""
    database = await Database.connect(url)
    try:
        async with database.transaction() as tx:
            for rule, query in database_rules.RULES.items():
                remaining = {one: await rows(tx.connection, one.source) for one in mutants_of_query(rule, query)}
                made = [one for one, found in remaining.items() if found is not None]
                left = [one for one in made if not remaining[one]]  # in the world at rest they are silent, as the rule is
                for statement, is_broken in _statements(rule):
                    outer = await tx.connection.begin_nested()
                    await tx.connection.execute(text(statement))
                    left = [one for one in left if await rows(tx.connection, one.source) is is_broken]
                    await outer.rollback()
                tallies[rule].caught += len(made) - len(left)
                tallies[rule].survived += left
    finally:
        await database.close()


def _statements(rule: str) -> list[tuple[str, bool]]:
    """With whether each breaks the rule."""
    broken = [(statement, True) for name, statements in breakages.RECORD if name == rule for statement in statements]
    return broken + [(statement, False) for name, statement in breakages.SOUND if name == rule]


# --------------------------------------------------------------------------------------------------- rules in Python

RULES_OF: dict[str, Sequence[str]] = {
    "_orphans": [stream_rules.ORPHANS],
    "_scores": [stream_rules.SCORES],
    "_weights": [stream_rules.WEIGHTS, stream_rules.ANNOUNCED],
    "_update": [stream_rules.WEIGHTS],
    "_statuses": [stream_rules.STATUS],
    "_deleted": [stream_rules.DELETED],
    "_letters": [stream_rules.LETTERS],
    "_is_readable": [stream_rules.LETTERS],
    "examine_blobs": [blob_rules.MISSING, blob_rules.ORPHANS, blob_rules.DAMAGED],
    "_is_needed": [blob_rules.ORPHANS],
    "_damage": [blob_rules.DAMAGED],
}
"""Function of the doctor → the rules that it judges."""
OPPOSITE: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Eq: ast.NotEq(), ast.NotEq: ast.Eq(), ast.In: ast.NotIn(), ast.NotIn: ast.In(),
    ast.Lt: ast.Gt(), ast.Gt: ast.Lt(), ast.Is: ast.IsNot(), ast.IsNot: ast.Is(),
}  # fmt: skip


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of `node`."""
    match node:
        case ast.Compare(ops=[operation]) if type(operation) in OPPOSITE:
            yield ast.Compare(node.left, [OPPOSITE[type(operation)]], node.comparators)
            if isinstance(node.left, ast.Tuple) and isinstance(node.comparators[0], ast.Tuple):
                for place in range(len(node.left.elts)):
                    yield ast.Compare(_without(node.left, place), node.ops, [_without(node.comparators[0], place)])
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
            for place in range(len(node.values)):
                left = node.values[:place] + node.values[place + 1 :]
                yield left[0] if len(left) == 1 else ast.BoolOp(node.op, left)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.comprehension(ifs=[_, *_]):
            yield ast.comprehension(node.target, node.iter, [], node.is_async)
        case ast.If():
            yield ast.If(ast.Constant(True), node.body, node.orelse)
            yield ast.If(ast.Constant(False), node.body, node.orelse)
        case ast.AugAssign(op=ast.Add()):
            yield ast.Pass()
        case _:
            pass


def _without(row: ast.Tuple, place: int) -> ast.Tuple:
    return ast.Tuple(row.elts[:place] + row.elts[place + 1 :], row.ctx)


class Replacing(ast.NodeTransformer):
    """Puts `after` in the place of the one node `before`."""

    def __init__(self, before: ast.AST, after: ast.AST) -> None:
        self._before, self._after = before, after

    def visit(self, node: ast.AST) -> ast.AST:
        return self._after if node is self._before else self.generic_visit(node)


def changed(function: ast.AST) -> Iterator[ast.AST]:
    """Copies of the function, each with one change."""
    words = {id(part) for node in ast.walk(function) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for place, node in enumerate(ast.walk(function)):
        if id(node) in words:  # of a finding: they decide nothing
            continue
        for choice in range(len(list(changes(node)))):
            fresh = copy.deepcopy(function)
            before = list(ast.walk(fresh))[place]
            yield ast.fix_missing_locations(Replacing(before, list(changes(before))[choice]).visit(fresh))


def mutants_of_module(module: ModuleType) -> Iterator[Mutant]:
    tree = ast.parse(getsource(module))
    whole = ast.unparse(tree)
    for function in [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name in RULES_OF]:
        before = ast.unparse(function)
        for fresh in changed(function):
            after = ast.unparse(fresh)
            lines = [pair for pair in zip(before.splitlines(), after.splitlines(), strict=False) if pair[0] != pair[1]]
            if lines:
                yield Mutant(function.name, f"{lines[0][0].strip()} → {lines[0][1].strip()}", whole.replace(before, after))


def loaded(module: ModuleType, source: str) -> ModuleType:
    made = ModuleType(module.__name__)
    exec(compile(source, module.__name__, "exec"), made.__dict__)
    return made


def doctors() -> Iterator[tuple[Mutant, ModuleType]]:
    """Each mutant with a copy of the examination that uses it."""
    for name, module in ("stream_rules", stream_rules), ("blob_rules", blob_rules):
        for mutant in mutants_of_module(module):
            doctor = loaded(runner, getsource(runner))
            setattr(doctor, name, loaded(module, mutant.source))
            yield mutant, doctor


async def named(doctor: ModuleType, world: Copy, depth: Depth) -> set[str] | None:
    """The rules that it finds broken; None when it breaks down."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return {finding.rule for finding in await doctor.examine(world.database, world.bus, depth)}
    except Exception:  # whatever a mutant raises fails its test
        return None


async def try_modules(made: Finished, folder: Path, tallies: dict[str, Tally]) -> None:
    """Every mutant of the code, in the world at rest and in each that is changed."""
    async with copied(made, folder / "rest") as world:
        silent = [(mutant, doctor, await named(doctor, world, AT_REST)) for mutant, doctor in doctors()]
    for mutant, _, found in silent:
        if found != set():
            tallies[_judged(mutant, found or set())].caught += 1
    left = [(mutant, doctor) for mutant, doctor, found in silent if found == set()]
    tried = [(rule, change, AT_REST, True) for rule, change in breakages.STORED]
    tried += [(rule, change, depth, False) for rule, change, depth in breakages.SOUND_STORES]
    for number, (rule, change, depth, is_broken) in enumerate(tried):
        async with copied(made, folder / str(number)) as world:
            await change(world)
            passed: list[tuple[Mutant, ModuleType]] = []
            for mutant, doctor in left:
                found = await named(doctor, world, depth) if rule in RULES_OF[mutant.rule] else None
                if rule in RULES_OF[mutant.rule] and (found is None or (rule in found) is not is_broken):
                    tallies[rule].caught += 1
                else:
                    passed.append((mutant, doctor))
            left = passed
    for mutant, _ in left:
        tallies[RULES_OF[mutant.rule][0]].survived.append(mutant)


def _judged(mutant: Mutant, found: set[str]) -> str:
    rules = RULES_OF[mutant.rule]
    return next((rule for rule in rules if rule in found), rules[0])


# ------------------------------------------------------------------------------------------------------------- report


async def every_mutant(made: Finished, folder: Path) -> dict[str, Tally]:
    tallies = {rule: Tally() for rule in runner.RULES}
    await try_queries(made.database(), tallies)
    await try_modules(made, folder, tallies)
    return tallies


def unexpected(tallies: dict[str, Tally]) -> list[str]:
    """Mutants that no test notices, and rules of which none was made."""
    survived = [(rule, one.change) for rule, tally in tallies.items() for one in tally.survived]
    unnoticed = [f"{rule}: {change}" for rule, change in survived if (rule, change) not in EQUIVALENT]
    return unnoticed + [f"{rule}: no mutant; is its function in RULES_OF?" for rule, tally in tallies.items() if not tally.made]


def table(tallies: dict[str, Tally]) -> str:
    lines = ["| rule | mutants | noticed | equivalent |", "| --- | ---: | ---: | ---: |"]
    for rule, tally in tallies.items():
        lines.append(f"| {rule} | {tally.made} | {tally.caught} | {len(tally.survived)} |")
    caught, survived = (sum(counts) for counts in zip(*((t.caught, len(t.survived)) for t in tallies.values()), strict=True))
    return "\n".join([*lines, f"| all {len(tallies)} | {caught + survived} | {caught} | {survived} |"])


def written(page: str, made: str) -> str:
    """The page with the table in its place."""
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{made}\n{END}{rest.partition(END)[2]}"


async def _run(folder: Path) -> dict[str, Tally]:
    with running_postgres(folder / "postgres") as port:
        made = await finish(port, migrated(port), folder / "finished")
        return await every_mutant(made, folder)


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="marlaas-mutants-") as folder:
        Path(folder).chmod(0o755)  # PostgreSQL does not run as root
        tallies = asyncio.run(_run(Path(folder)))
    made = table(tallies)
    print(made, *unexpected(tallies), sep="\n")
    if "--write" in sys.argv:
        PAGE.write_text(written(PAGE.read_text(), made))
    sys.exit(bool(unexpected(tallies)))


if __name__ == "__main__":
    main()

"""Mutants of the rules that are SQL queries, run against the breakages of the database."""

import re
from collections.abc import Iterator

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from scheduler_svc.base.database import Database
from scheduler_svc.doctor import database_rules
from tests.scheduler.doctor import database_breakages
from tests.scheduler.doctor.mutant import Mutant, MutantCounts

PATIENCE_S = 200.0
"""Maximum time of the mutants of all rules, in one transaction."""
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
"""(pattern, replacement); each match makes one mutant."""


def shown(query: str) -> set[int]:
    """Positions of the outermost SELECT's columns, which locate a violation and decide nothing."""
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


async def finds_rows(connection: AsyncConnection, query: str) -> bool | None:
    """None when PostgreSQL refuses the query."""
    outer = await connection.begin_nested()
    try:
        return (await connection.execute(text(f"SELECT * FROM ({query}) AS broken LIMIT 1"))).first() is not None
    except DBAPIError:
        return None
    finally:
        await outer.rollback()


async def try_queries(url: str, counts: dict[str, MutantCounts]) -> None:
    """Run every mutant of every query; a query that PostgreSQL refuses is no mutant."""
    async with await Database.connect(url) as database, database.transaction(patience_s=PATIENCE_S) as tx:
        for rule, query in database_rules.RULES.items():
            remaining = {one: await finds_rows(tx.connection, one.source) for one in mutants_of_query(rule, query)}
            made = [one for one, found in remaining.items() if found is not None]
            left = [one for one in made if not remaining[one]]  # silent in the finished world, as the rule is
            for statement, is_broken in _statements(rule):
                outer = await tx.connection.begin_nested()
                for one in statement.split("; "):  # a prepared statement is one
                    await tx.connection.execute(text(one))
                left = [one for one in left if await finds_rows(tx.connection, one.source) is is_broken]
                await outer.rollback()
            counts[rule].caught += len(made) - len(left)
            counts[rule].survived += left


def _statements(rule: str) -> list[tuple[str, bool]]:
    """(statement, whether it violates the rule)"""
    violations = [(statement, True) for statement in database_breakages.VIOLATIONS[rule]]
    return violations + [(statement, False) for statement in database_breakages.COMPLIANT.get(rule, [])]

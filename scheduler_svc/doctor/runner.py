"""Checks all rules, and prints a report: one line per rule, followed by the violations of a broken one.

A violation counts only if it is found twice, since a transaction in flight may look like one.
"""

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import text

from common.access.folder import SYSTEM, SigningKeys, open_folder
from common.bus import Bus
from scheduler_svc.base.database import Database
from scheduler_svc.doctor import blob_rules, database_rules, key_rules, stream_rules
from scheduler_svc.doctor.blob_rules import DAMAGED
from scheduler_svc.doctor.violation import Violation

RULES = (*database_rules.RULES, *stream_rules.RULES, *blob_rules.RULES)
"""Rules that are always examined; the rules of `key_rules.py` need the folder of signing keys."""


@dataclass(frozen=True)
class Depth:
    """Strictness of an examination."""

    grace_s: float
    """Age in seconds below which messages and blobs may still await the scheduler's periodic sweep; 0 accepts none."""
    deep: bool
    """Read every blob and compare its digest."""
    second_look_s: float = 3.0
    """Seconds between the two examinations."""


@dataclass(frozen=True)
class Keys:
    """A folder of signing keys. If other users can read it, the keys are not used, and only its files are examined."""

    folder: Path
    opened: tuple[SigningKeys, Bus] | None
    """The keys, and a connection with the system key; None if the keys are not used."""

    @classmethod
    async def read(cls, folder: Path, nats_url: str) -> "Keys":
        """Open the folder and connect. Raises: Fatal if it is not a folder of signing keys, or NATS refuses its system key."""
        if key_rules.examine_folder(folder):
            return cls(folder, None)
        signing = open_folder(folder)
        return cls(folder, (signing, await Bus.connect(nats_url, "doctor", creds=signing.credentials(SYSTEM))))

    @property
    def rules(self) -> tuple[str, ...]:
        return key_rules.RULES if self.opened else (key_rules.READABLE,)

    async def close(self) -> None:
        if self.opened:
            await self.opened[1].close()


async def examine(database: Database, bus: Bus, depth: Depth, keys: Keys | None = None) -> list[Violation]:
    """Violations that persist for `second_look_s`. `keys`: also examine the rules about keys.

    Raises: Retry if PostgreSQL or NATS is unavailable.
    """
    found = await _examine(database, bus, depth, keys)
    if not found:
        return []
    await asyncio.sleep(depth.second_look_s)
    still = {(violation.rule, _identity(violation)) for violation in await _examine(database, bus, depth, keys)}
    return sorted(violation for violation in found if (violation.rule, _identity(violation)) in still)


def _identity(violation: Violation) -> str:
    """Location of the violation without its age, which differs between examinations."""
    return violation.where.partition(" age_s=")[0]


async def _examine(database: Database, bus: Bus, depth: Depth, keys: Keys | None) -> list[Violation]:
    async with database.transaction() as tx:
        await tx.connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY"))
        found = await database_rules.examine_database(tx.connection)
        recorded = await stream_rules.read_recorded(tx.connection, depth.grace_s)
        needed, wheels = await blob_rules.read_needed(tx.connection), await blob_rules.read_wheels(tx.connection)
        accounts = await key_rules.read_accounts(tx.connection, keys.opened[0].admin.public) if keys and keys.opened else []
    found += await stream_rules.examine_streams(bus, recorded)
    if keys:
        found += key_rules.examine_folder(keys.folder)
    if keys and keys.opened:
        found += await key_rules.examine_accounts(*keys.opened, accounts)
    return found + await blob_rules.examine_blobs(bus, needed, wheels, grace_s=depth.grace_s, deep=depth.deep)


def as_lines(found: Sequence[Violation], *, deep: bool, further: Sequence[str] = ()) -> str:
    """Report as text. `deep`: whether blobs were read. `further`: examined rules about keys."""
    wrong: dict[str, list[str]] = defaultdict(list)
    for violation in found:
        wrong[violation.rule].append(violation.where)
    lines: list[str] = []
    rules = (*RULES, *further)
    for rule in rules:
        if rule == DAMAGED and not deep:
            lines.append(f"not read  {rule}: --deep reads every blob")
        else:
            lines += [f"{'BROKEN  ' if wrong[rule] else 'holds   '}  {rule}", *(f"            {where}" for where in wrong[rule])]
    broken = sum(bool(rows) for rows in wrong.values())
    lines.append(f"\n{broken} of {len(rules)} rules are broken" if broken else f"\nall {len(rules) - (not deep)} examined rules hold")
    return "\n".join([*lines, ""])


def as_json(found: Sequence[Violation]) -> str:
    return json.dumps([{"rule": violation.rule, "where": violation.where} for violation in found], indent=2) + "\n"

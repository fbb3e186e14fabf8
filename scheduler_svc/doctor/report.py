"""Report of the doctor: one line a rule, followed by the violations of a broken one."""

import json
from collections import defaultdict
from collections.abc import Sequence

from scheduler_svc.doctor.blob_rules import DAMAGED
from scheduler_svc.doctor.runner import RULES
from scheduler_svc.doctor.violation import Violation


def as_lines(found: Sequence[Violation], *, deep: bool, further: Sequence[str] = ()) -> str:
    """`deep`: whether blobs were read. `further`: rules about keys that were examined."""
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

"""What the doctor says: one line a rule, and below a broken one what breaks it."""

import json
from collections import defaultdict
from collections.abc import Sequence

from scheduler_svc.doctor.blob_rules import DAMAGED
from scheduler_svc.doctor.runner import RULES
from scheduler_svc.doctor.violation import Violation


def as_lines(found: Sequence[Violation], *, deep: bool) -> str:
    wrong: dict[str, list[str]] = defaultdict(list)
    for finding in found:
        wrong[finding.rule].append(finding.where)
    lines: list[str] = []
    for rule in RULES:
        if rule == DAMAGED and not deep:
            lines.append(f"not read  {rule}: --deep reads every blob")
        else:
            lines += [f"{'BROKEN  ' if wrong[rule] else 'holds   '}  {rule}", *(f"            {where}" for where in wrong[rule])]
    broken = sum(bool(rows) for rows in wrong.values())
    lines.append(
        f"\n{broken} of {len(RULES)} rules are broken" if broken else f"\nall {len(RULES) - (not deep)} rules that were looked at hold"
    )
    return "\n".join([*lines, ""])


def as_json(found: Sequence[Violation]) -> str:
    return json.dumps([{"rule": finding.rule, "where": finding.where} for finding in found], indent=2) + "\n"

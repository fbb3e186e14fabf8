"""Right programs get 1 and wrong ones 0: `python -m tests.env.programs [bubblewrap docker namespaces landlock monty]`.

For at least 300 right programs (`corpus.py`) and five mutants of each (`mutants.py`), the reward of the environment `code` in each
sandbox. An attempt that the sandbox calls unsupported is void, and counted by what was missing: many of monty's, and those that
need the semaphores of other processes in the weaker kind of `confined`.
Writes `bench/results/programs.json`; the exit status is 1 when a reward is wrong.
"""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.harness import report
from env_svc.builtin.code import Code
from env_svc.contract import Finish, Reply, Unsupported
from env_svc.sandboxes.confined import ConfinedSandbox
from env_svc.sandboxes.current import sandbox_of, use
from env_svc.sandboxes.sandbox import Sandbox
from env_svc.settings import EnvSettings
from tests.env.programs import corpus
from tests.env.programs.mutants import MUTANTS, Case, case_of

KINDS = ("bubblewrap", "docker", "namespaces", "landlock", "monty")
"""`namespaces` and `landlock` are the two kinds of the sandbox `confined`."""
MISSING = re.compile(r"cannot run this program \((?:line \d+: )?(.*)\); run the environment")
MAY_BE_VOID = ("monty", "landlock")


@dataclass
class Tally:
    """Results of one sandbox."""

    right: int = 0
    """Programs that got 1."""
    wrong: int = 0
    """Mutants that got 0."""
    void_programs: int = 0
    void_mutants: int = 0
    missing: Counter[str] = field(default_factory=Counter[str])
    """Reason of void programs → their number."""
    misgraded: list[str] = field(default_factory=list[str])
    """Titles of right programs that got 0, and of mutants that got 1."""


def started(kind: str, runs: int) -> Sandbox:
    """The sandbox, not started yet, with that many places."""
    if kind in ("namespaces", "landlock"):
        return ConfinedSandbox(runs, kind)
    return sandbox_of(kind, EnvSettings.read().model_copy(update={"sandbox_runs": runs, "sandbox_warm": runs}))


async def grade(cases: Sequence[Case], sandbox: Sandbox, runs: int) -> Tally:
    """Every case and its mutants, `runs` at once; the sandbox is started and closed here."""
    await sandbox.start()
    use(sandbox)
    tally, places = Tally(), asyncio.Semaphore(runs)
    try:
        code = Code(time_s=20.0)
        await asyncio.gather(*(_grade_one(code, case, tally, places) for case in cases))
    finally:
        use(None)
        await sandbox.close()
    return tally


async def _grade_one(code: Code, case: Case, tally: Tally, places: asyncio.Semaphore) -> None:
    for number, source in enumerate((case.source, *case.mutants)):
        async with places:
            reward = await reward_of(code, case, source)
        if isinstance(reward, str):
            tally.void_programs += number == 0
            tally.void_mutants += number > 0
            tally.missing.update([reward] if number == 0 else [])
        elif number == 0:
            tally.right += reward == 1
            tally.misgraded += [case.title] if reward != 1 else []
        else:
            tally.wrong += reward == 0
            tally.misgraded += [f"{case.title}, mutant {number}"] if reward != 0 else []


async def reward_of(code: Code, case: Case, source: str) -> float | str:
    """Its reward, or what the sandbox lacks for it."""
    try:
        turn = await code.step({"tests": list(case.tests), "setup": "", "solution": ""}, Reply(f"```python\n{source}\n```"))
    except Unsupported as error:
        found = MISSING.search(str(error))
        assert found is not None, error
        return found[1]
    assert isinstance(turn, Finish)
    return turn.reward


def cases_of(programs: Sequence[corpus.Program]) -> list[Case]:
    return [case_of(program) for program in programs]


def summary(tally: Tally, programs: int, seconds: float) -> dict[str, Any]:
    return {
        "programs": programs,
        "right_got_1": tally.right,
        "mutants": programs * MUTANTS,
        "mutants_got_0": tally.wrong,
        "void_programs": tally.void_programs,
        "void_mutants": tally.void_mutants,
        "missing": dict(tally.missing.most_common()),
        "misgraded": tally.misgraded,
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("sandboxes", nargs="*", metavar="sandbox", help=", ".join(KINDS))
    parser.add_argument("--every", type=int, default=1, help="of so many programs one")
    parser.add_argument("--name", default="programs", help="of the JSON in bench/results")
    options = parser.parse_args()
    if unknown := set(options.sandboxes) - set(KINDS):
        parser.error(f"no sandbox {', '.join(sorted(unknown))}; there are {', '.join(KINDS)}")
    machine, programs = report.machine(), corpus.programs()[:: options.every]
    cases = cases_of(programs)
    runs = len(os.sched_getaffinity(0))
    found: dict[str, Any] = {}
    for kind in options.sandboxes or KINDS:
        began = time.perf_counter()
        tally = asyncio.run(grade(cases, started(kind, runs), runs))
        found[kind] = summary(tally, len(cases), time.perf_counter() - began)
        print(json.dumps({kind: found[kind]}), flush=True)
    content: dict[str, object] = {
        "command": " ".join(["python -m tests.env.programs", *sys.argv[1:]]),
        "machine": machine,
        "modules": sorted(corpus.modules_of(programs)),
        "statements": sorted(kind.__name__ for kind in corpus.statements_of(programs)),
        "sandboxes": found,
    }
    report.write(options.name, content, ("common", "env_svc", "tests/env/programs"))
    if any(one["misgraded"] or (one["void_programs"] and kind not in MAY_BE_VOID) for kind, one in found.items()):
        sys.exit(1)


if __name__ == "__main__":
    main()

"""Violations of each rule about shared accelerators: statements that a test undoes, in the finished world."""

from scheduler_svc.doctor.database_rules import RULES

FIT, FOLLOW, WHOLE, LEDGER, CLOCK = list(RULES)[-5:]
AT = "'2030-01-01 12:00:{:02d}Z'::timestamptz"


def a_slice(
    epoch: int,
    begin_s: int = 0,
    end_s: int | None = 2,
    *,
    how: str = "died",
    executor: str = "trainer-tiny",
    awake: bool = False,
    booked: bool = False,
) -> str:
    """Values of a slice."""
    begin, end = AT.format(begin_s), "NULL" if end_s is None else AT.format(end_s)
    ended = "NULL" if end_s is None else f"'{how}'"
    uses = f"now(), {1000 * (end_s or 0) - 1000 * begin_s}, 0, 0" if booked else "NULL, NULL, NULL, NULL"
    woke = begin if awake else "NULL"
    values = f"'{executor}', 'tiny', 'train', 'first', '{{}}', 1, 'host', {begin}, {woke}, {end}, {ended}, {uses}"
    return f"('a', {epoch}, {999990 + epoch}, {values})"


def slices(*found: str, shares: str = "", epoch: int = 9) -> str:
    """A statement that inserts an accelerator with slices, and their shares."""
    columns = (
        "accelerator, epoch, number, executor, pool, function, reason, tasks, expected_s, from_tier, ordered_at, awake_at, ended_at, ended,"
        " booked_at, switch_ms, busy_ms, idle_ms"
    )
    known = f"WITH known AS (INSERT INTO accelerators (id, spec, epoch) VALUES ('a', '{{}}', {epoch}))"
    if shares:
        shared = f"INSERT INTO slice_shares (accelerator, epoch, task, tenant, ms) VALUES {shares}"
        return f"{known}, sliced AS (INSERT INTO slices ({columns}) VALUES {', '.join(found)}) {shared}"
    return f"{known} INSERT INTO slices ({columns}) VALUES {', '.join(found)}"


def beside(statement: str, sliced: str) -> str:
    """Both in one statement."""
    return sliced.replace("WITH known", f"WITH beside AS ({statement}), known", 1)


OF_A, OF_NOBODY = "('a', 1, 'a', 'acme', {})", "('a', 1, '', NULL, {})"
BOOKED = "INSERT INTO ledger (tenant, task, kind, number, tokens) VALUES ('acme', 'a', 'accelerator', 999991, 2000)"
TWO = slices(a_slice(1, booked=True), a_slice(2, 2, 5, booked=True), shares=f"{OF_A.format(2000)}, ('a', 2, 'a', 'acme', 3000)")
TWO_ACCELERATORS = slices(
    a_slice(5, booked=True),
    a_slice(1, booked=True).replace("('a'", "('b'"),
    shares="('a', 5, '', NULL, 2000), ('b', 1, '', NULL, 2000)",
).replace("('a', '{}', 9)", "('a', '{}', 9), ('b', '{}', 9)")
STANDS = "INSERT INTO pool_clocks (pool, parked_since) VALUES ('tiny', now())"


def executor(size: int, memory: str = '"memory_gib": 2', tier: str = "none") -> str:
    """A statement that inserts an executor that needs so many bytes, on an accelerator of its own."""
    known = f"WITH known AS (INSERT INTO accelerators (id, spec) VALUES ('a', '{{{memory}}}'))"
    values = f"('a', 'trainer-tiny', 'tiny', 'trainer', '{tier}', {size})"
    return f"{known} INSERT INTO executors (accelerator, id, pool, service, tier, device_bytes) VALUES {values}"


VIOLATIONS: dict[str, list[str]] = {
    FIT: [executor(2**31 + 1), executor(2**30 + 1, '"memory_gib": 1.0', "disk")],
    FOLLOW: [
        slices(a_slice(1, end_s=None), a_slice(2)),
        slices(a_slice(1, 0, 5), a_slice(2, 4, 6)),
        slices(a_slice(1, 0, 5, how="switched"), a_slice(2, 6, 8)),
        slices(a_slice(1, how="switched")),
        slices(a_slice(5), epoch=4),
    ],
    WHOLE: [
        slices(a_slice(1, booked=True)),
        slices(a_slice(1, booked=True), shares=OF_NOBODY.format(1999)),
        slices(a_slice(1, booked=True), shares=f"{OF_A.format(1999)}, {OF_NOBODY.format(2)}"),
        slices(a_slice(1), shares=OF_NOBODY.format(2000)),
        slices(a_slice(1, end_s=None), shares=OF_NOBODY.format(1)),
    ],
    LEDGER: [
        BOOKED,
        slices(a_slice(1, booked=True), shares=OF_A.format(2000)),
        beside(BOOKED.replace("999991", "999993"), slices(a_slice(1, booked=True), shares=OF_NOBODY.format(2000))),
        beside(
            BOOKED.replace("999991", "999992"),
            slices(a_slice(1, booked=True), a_slice(3, 2, 4, booked=True), shares=f"{OF_NOBODY.format(2000)}, ('a', 3, '', NULL, 2000)"),
        ),
        beside(BOOKED.replace("2000", "1999"), slices(a_slice(1, booked=True), shares=OF_A.format(2000))),
        beside(BOOKED.replace("acme", "other"), slices(a_slice(1, booked=True), shares=OF_A.format(2000))),
        beside(BOOKED, slices(a_slice(1, booked=True), shares=OF_A.format(2000).replace("acme", "other"))),
        beside(BOOKED, slices(a_slice(1, booked=True), shares=OF_NOBODY.format(2000))),
    ],
    CLOCK: [
        beside(STANDS, slices(a_slice(1, end_s=None, executor="rollout-tiny", awake=True))),
    ],
}
COMPLIANT: dict[str, list[str]] = {
    FIT: [executor(2**31), executor(2**31 + 1, ""), executor(2**31 + 1, tier="off")],
    FOLLOW: [
        slices(a_slice(1, 0, 5, how="switched"), a_slice(4, 5, None)),
        slices(a_slice(1, 0, 5), a_slice(4, 9, 12)),
        slices(a_slice(1, end_s=None)),
    ],
    WHOLE: [
        slices(a_slice(1)),
        slices(a_slice(1, booked=True), shares=f"{OF_A.format(1999)}, {OF_NOBODY.format(1)}"),
        slices(a_slice(1, 2, 2, booked=True)),
        TWO,
    ],
    LEDGER: [
        slices(a_slice(1, booked=True), shares=OF_NOBODY.format(2000)),
        beside(BOOKED, slices(a_slice(1, booked=True), shares=OF_A.format(2000))),
        beside(f"{BOOKED}, ('acme', 'a', 'accelerator', 999992, 3000)", TWO),
        beside(BOOKED, slices(a_slice(2, booked=True), shares="('a', 2, '', NULL, 2000)")),  # the first was deleted
        beside(BOOKED.replace("999991", "999993"), TWO_ACCELERATORS),  # one of `a` was deleted, which is younger than those of `b`
    ],
    CLOCK: [
        beside(STANDS, slices(a_slice(1, end_s=None, executor="rollout-tiny"))),
        beside(STANDS, slices(a_slice(1, end_s=None, awake=True))),
        beside(STANDS, slices(a_slice(1, executor="rollout-tiny", awake=True))),
    ],
}

"""Downloads that need no further statement about their row in the audit."""

from scheduler_svc.base import audit
from scheduler_svc.base.audit import MAX_DOWNLOADS, REMEMBERED_S, Downloads


def test_a_recorded_download_is_known_for_a_while_to_its_key_only() -> None:
    now = [100.0]
    known = Downloads(lambda: now[0])
    assert not known.are_recorded(("KEY", "a.v1"))
    known.record(("KEY", "a.v1"))
    assert known.are_recorded(("KEY", "a.v1"))
    assert not known.are_recorded(("OTHER", "a.v1"))
    assert not known.are_recorded(("KEY", "a.v2"))
    now[0] += REMEMBERED_S
    assert not known.are_recorded(("KEY", "a.v1")), "the audit is asked once more"


def test_the_oldest_downloads_are_forgotten_first() -> None:
    known = Downloads(lambda: 0.0)
    for number in range(MAX_DOWNLOADS + 1):
        known.record(("KEY", f"a.v{number}"))
    assert [known.are_recorded(("KEY", f"a.v{number}")) for number in (0, 1, MAX_DOWNLOADS)] == [False, True, True]


def test_a_row_is_taken_to_be_there_for_less_time_than_one_row_counts() -> None:
    assert audit.REMEMBERED_S < 3600, "the audit has one row an hour"

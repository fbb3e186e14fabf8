"""Numbers in the pages are those of bench/results; each kind of difference is reported, in a broken copy of both."""

import copy

import pytest

from bench.quotes import Result, complaints, is_known, measured_numbers, read_pages, read_results, result_of


def changed(commit: str, measures: list[str]) -> bool:
    return True


def unchanged(commit: str, measures: list[str]) -> bool:
    return False


@pytest.fixture
def pages() -> dict[str, str]:
    return read_pages()


@pytest.fixture
def results() -> dict[str, Result]:
    return copy.deepcopy(read_results())


def test_pages_say_what_the_results_have_even_if_all_of_them_are_old(pages: dict[str, str], results: dict[str, Result]) -> None:
    assert complaints(pages, results, changed, result_of) == []


def broken(pages: dict[str, str], page: str, old: str, new: str) -> dict[str, str]:
    assert old in pages[page]
    return pages | {page: pages[page].replace(old, new, 1)}


@pytest.mark.parametrize(
    ("page", "old", "new", "complaint"),
    [
        ("README.md", "13.8×", "14.9×", "14.9× is not in scaling, scaling-1000"),
        ("README.md", "<!-- from: demo -->", "", "has the number 0.39 and no mark of where it is from"),
        ("README.md", "from: demo", "from: absent", "quotes absent.json, which is not there"),
        ("README.md", "at d2cb1a0", "yesterday", "what demo.json measures has changed since; say 'measured at d2cb1a0'"),
        ("README.md", "earns 0.815", "earns 0.915", "0.915 is not in greedy"),
        ("README.md", "<!-- from 3d590f0: greedy", "<!-- from 3d590f0: absent", "quotes absent.json, which is not in 3d590f0"),
        ("README.md", "<!-- from 3d590f0: greedy", "<!-- from 0000000: greedy", "quotes greedy.json, which is not in 0000000"),
        ("docs/benchmarks.md", "| 2801 (", "| 3801 (", "a table is not what its JSON gives"),
        ("docs/benchmarks.md", "<!-- trl: made", "<!-- absent: made", "a table quotes absent.json, which is not there"),
    ],
)
def test_broken_page_is_reported(pages: dict[str, str], results: dict[str, Result], page: str, old: str, new: str, complaint: str) -> None:
    assert complaint in "\n".join(complaints(broken(pages, page, old, new), results, changed, result_of))


@pytest.mark.parametrize("key", ["commit", "date", "machine", "measures"])
def test_result_without_where_it_is_from_is_reported(pages: dict[str, str], results: dict[str, Result], key: str) -> None:
    del results["soak"][key]
    assert complaints(pages, results, unchanged, result_of) == [f"bench/results/soak.json has no {key}"]


def test_what_has_not_changed_needs_no_commit_beside_it(pages: dict[str, str], results: dict[str, Result]) -> None:
    assert complaints(broken(pages, "README.md", "Measured at d2cb1a0, 2026-11-22.", ""), results, unchanged, result_of) == []


def test_number_is_known_as_it_is_rounded() -> None:
    assert measured_numbers("16 prompts × 8 gave 0.39, 91 % and 13.8× of 2,801 in `0.5`, [x](a0.7)") == ["0.39", "91 %", "13.8×", "2,801"]
    assert is_known("0.39", [0.386])
    assert is_known("91 %", [0.912])
    assert is_known("80.8", [80_800_123])
    assert not is_known("0.39", [0.381])
    assert is_known("91 %", [91.0])
    assert not is_known("91", [0.912])

"""Checks that measured numbers in the pages come from bench/results: `python -m bench.quotes`, part of `make check`.

A table between `<!-- NAME: made by bench.pages -->` and `<!-- end -->` is what `bench.pages` makes of NAME.json, if it is there. Any
other paragraph with measured numbers ends with one of three marks:

- `<!-- from: NAME NAME; given: 0.2 2 -->`: each measured number is in the table that is made of one of these results, or where none is
  made in the result itself. Numbers after `given:` are not measured. A row that links to results has its numbers from those.
- `<!-- from COMMIT: NAME -->`: the result and its program have left the tree, and COMMIT has both.
- `<!-- not kept -->`: the runs' JSON was not kept. The check counts these paragraphs.

Measured numbers have decimals, a percent sign, × or at least three digits; smaller whole numbers are counts.
Each JSON has `commit`, `date`, `machine` and `measures`. What `measures` lists may have changed since that commit, or git may not know the
commit: then a paragraph or table that quotes it says "measured at COMMIT".
"""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.harness.report import RESULTS, ROOT
from bench.pages import PAGES, TABLES, joined, page

REQUIRED = ("commit", "date", "machine", "measures")
PARAGRAPHS = {"README.md": "Measured", "docs/benchmarks.md": None}
"""Pages whose paragraphs are checked; all of a page, or the section of that heading."""
MARK = re.compile(r"<!-- (?:from(?: (?P<commit>[0-9a-f]{7,40}))?: (?P<names>[^;]*?)(?:; given: (?P<given>.*?))?|(?P<unkept>not kept)) -->")
MADE = re.compile(r"<!-- ([\w-]+): made by bench\.pages -->\n(.*?)<!-- end -->", re.DOTALL)
LINK = re.compile(r"\]\(bench/results/([\w-]+)\.json\)")
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
UNCHECKED = re.compile(r"<!--.*?-->|`[^`]*`|\]\([^)]*\)|^#+ .*|measured at [^.]*\.|\d{4}-\d\d-\d\d", re.MULTILINE | re.IGNORECASE)
NUMBER = re.compile(r"(?<![\w.])(\d{1,3}(?:[, ]\d{3})+|\d+)(\.\d+)?( ?%|×)?(?![\w])")

Result = dict[str, Any]
HasChanged = Callable[[str, list[str]], bool]
Earlier = Callable[[str, str], Result | None]


def complaints(pages: Mapping[str, str], results: Mapping[str, Result], has_changed: HasChanged, earlier: Earlier) -> list[str]:
    """One sentence for each rule that a page or a result breaks.

    `pages`: texts by path; `has_changed`: whether any of these paths has changed since that commit; `earlier`: a commit's result of that
    name, None where it has none.
    """
    found = [f"bench/results/{name}.json has no {key}" for name, one in results.items() for key in REQUIRED if not one.get(key)]
    stale = {name for name, one in results.items() if has_changed(str(one.get("commit", "")), one.get("measures", []))}
    for path, text in pages.items():
        if page(text, dict(results), TABLES) != text:
            found.append(f"{path}: a table is not what its JSON gives; run `python -m bench.pages`")
        tables = [(name, made) for name, made in MADE.findall(text) if "|" in made]
        found += [f"{path}: a table quotes {name}.json, which is not there" for name, _ in tables if name not in results]
        blocks = [(f"the table of {name}", table, [name]) for name, table in tables]
        for block in _paragraphs(path, text):
            where, numbers = repr(" ".join(block.split())[:50]), measured_numbers(block)
            mark = MARK.search(block)
            if mark is None:
                found += [f"{path}: {where} has the number {numbers[0]} and no mark of where it is from"] if numbers else []
            elif mark["unkept"] is None:
                names = mark["names"].split()
                there, place = results, "there"
                if at := mark["commit"]:
                    there, place = {name: one for name in names if (one := earlier(at, name)) is not None}, f"in {at}"
                found += [f"{path}: {where} quotes {name}.json, which is not {place}" for name in names if name not in there]
                given = [float(one) for one in (mark["given"] or "").split()]
                for part, sources in _parts(block, names):
                    known = given + [value for name in sources if name in there for value in _values(name, there[name])]
                    unknown = [one for one in measured_numbers(part) if not is_known(one, known)]
                    found += [f"{path}: {where}: {one} is not in {', '.join(sources)}" for one in unknown]
                blocks += [(where, block, names)] if there is results else []
        for where, block, names in blocks:
            for name in [name for name in names if name in stale]:
                commit = str(results[name].get("commit", ""))[:7]
                if not re.search(rf"measured at [^.]*{commit}", block, re.IGNORECASE):
                    found.append(f"{path}: {where}: what {name}.json measures has changed since; say 'measured at {commit}'")
    return found


def measured_numbers(text: str) -> list[str]:
    """Numbers of a paragraph, as written."""
    found = [number for number in NUMBER.finditer(UNCHECKED.sub(" ", text)) if number[2] or number[3] or len(number[1]) >= 3]
    return [number[0].strip() for number in found]


def is_known(written: str, known: list[float]) -> bool:
    """Whether one of the values, rounded like `written`, equals it; a percentage is also a share, and bytes from a million are MB."""
    bare = re.sub(r"[, %×]", "", written)
    value, decimals = float(bare), len(bare.partition(".")[2])
    tolerance = 0.501 * 10**-decimals
    scales = (1.0, 100.0) if written.endswith("%") else (1.0,)
    return any(abs(one * scale - value) <= tolerance for one in known for scale in (*scales, *([1e-6] if one >= 1e6 else [])))


def _paragraphs(path: str, text: str) -> list[str]:
    """Paragraphs of a checked page that are not made from a result."""
    if path not in PARAGRAPHS:
        return []
    section = PARAGRAPHS[path]
    if section is not None:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return re.split(r"\n\s*\n", FENCED.sub("", MADE.sub("", text)))


def _parts(block: str, names: list[str]) -> list[tuple[str, list[str]]]:
    """The rows that link to results, each with their names, then all other lines with `names`."""
    linked = [(line, LINK.findall(line)) for line in block.splitlines()]
    return [*((line, sources) for line, sources in linked if sources), ("\n".join(line for line, sources in linked if not sources), names)]


def _values(name: str, result: Result) -> Iterator[float]:
    yield from _numbers_in(TABLES[name](result) if name in TABLES else {key: result[key] for key in result.keys() - {"commit", "date"}})


def _numbers_in(value: object) -> Iterator[float]:
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield abs(float(value))
    elif isinstance(value, str):
        yield from (float(re.sub(r"[, ]", "", found[1]) + (found[2] or "")) for found in NUMBER.finditer(value))
    elif isinstance(value, dict | list):
        yield float(len(value))
        for one in value.values() if isinstance(value, dict) else value:
            yield from _numbers_in(one)


def changed_since(commit: str, paths: list[str]) -> bool:
    """Whether any of the paths has changed since the commit; true for unknown commits and dirty trees."""
    done = subprocess.run(["git", "diff", "--quiet", commit, "HEAD", "--", *paths], cwd=ROOT, capture_output=True, check=False)
    return done.returncode != 0


def result_of(commit: str, name: str) -> Result | None:
    """The result as that commit has it; None where it has none, or git does not know the commit."""
    found = subprocess.run(["git", "show", f"{commit}:bench/results/{name}.json"], cwd=ROOT, capture_output=True, check=False)
    return json.loads(found.stdout) if found.returncode == 0 else None


def read_results(folder: Path = RESULTS) -> dict[str, Result]:
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def read_pages() -> dict[str, str]:
    return {str(path.relative_to(ROOT)): path.read_text() for path in (ROOT / "README.md", *PAGES)}


def main() -> int:
    pages = read_pages()
    found = complaints(pages, joined(read_results()), changed_since, result_of)
    unkept = sum(text.count("<!-- not kept -->") for text in pages.values())
    print("\n".join(found) or f"Every measured number names its result, but those of {unkept} paragraphs whose runs were not kept.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())

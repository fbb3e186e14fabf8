"""Options of reasoning-gym's data sets: a task's text opens no file of the host and runs no code."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import JsonValue
from reasoning_gym.factory import DATASETS

from env_svc.builtin.reasoning_gym import ReasoningGym, check_texts, options_of
from env_svc.contract import Reply, WrongOptions


@pytest.mark.parametrize("path", ["/etc/passwd", "../../../x", "words.txt"])
def test_no_option_names_a_file_of_the_host(path: str, tmp_path: Path) -> None:
    with pytest.raises(WrongOptions, match=r"option 'data_file' may hold words of letters and digits, or of \['words3to10.txt'\]"):
        ReasoningGym("spell_backward", data_file=path)
    ReasoningGym("spell_backward", data_file="words3to10.txt")


@pytest.mark.parametrize(("dataset", "wrap"), [("simple_integration", False), ("composite", True)])
async def test_no_option_is_run_as_code(dataset: str, wrap: bool, tmp_path: Path) -> None:
    """The library evaluates the symbols of an integrand when it scores a reply."""
    mark = tmp_path / "mark"
    options: dict[str, Any] = {"symbols": [f"__import__('pathlib').Path({str(mark)!r}).touch()"]}
    if wrap:
        options = {"datasets": [{"name": "simple_integration", "weight": 1.0, "config": options}]}
    with pytest.raises(WrongOptions, match="option 'symbols' may hold words"):
        environment = ReasoningGym(dataset, **options)
        await environment.step((await environment.open(0, 1)).state, Reply("x"))
    assert not mark.exists()


def _filled(hint: Any, text: str) -> JsonValue:
    return text if hint in (str, str | None) else {"alphabet": [text]} if "Board" in str(hint) else [text]


TEXTUAL = [
    (dataset, option)
    for dataset in sorted(DATASETS)
    for option in options_of(dataset)
    if any(kind in str(option.annotation) for kind in ("str", "'tuple'", "Board"))
]


@pytest.mark.parametrize(("dataset", "option"), TEXTUAL, ids=[f"{dataset}-{option.name}" for dataset, option in TEXTUAL])
def test_every_text_of_every_data_set_is_words_or_of_its_default(dataset: str, option: Any) -> None:
    for text in ("/etc/passwd", "a.b", "f()", "[1]", "__import__", "a" * 41, "x\ny"):
        with pytest.raises(WrongOptions, match=f"option '{option.name}' may hold"):
            check_texts("here", dataset, {option.name: _filled(option.annotation, text)})
    check_texts("here", dataset, {option.name: _filled(option.annotation, "Mary Ann")})


def test_all_textual_options_are_found() -> None:
    assert len(TEXTUAL) > 25
    assert ("spell_backward", "data_file") in {(dataset, option.name) for dataset, option in TEXTUAL}


@pytest.mark.parametrize("parts", [[{"name": "no_such", "weight": 1}], [{"name": ["gcd"]}], [{"name": "gcd", "config": "x"}]])
def test_part_of_a_mixture_that_is_none_is_refused(parts: list[dict[str, JsonValue]]) -> None:
    with pytest.raises(WrongOptions):
        ReasoningGym("composite", datasets=parts)  # pyright: ignore[reportArgumentType]

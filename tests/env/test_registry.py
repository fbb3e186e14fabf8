"""Names and options to environments, and what is said about wrong ones."""

import pytest

from common.errors import Fatal
from env_svc import registry
from env_svc.contract import WrongOptions
from env_svc.registry import UnknownEnvironment, build, family_of, find, list_environments
from tests.env.toys import Countdown, Typed


def test_installed_environments_are_listed_with_their_arguments() -> None:
    names = list_environments()
    assert "reasoning_gym:gcd" in names
    assert len([name for name in names if name.startswith("reasoning_gym:")]) > 100
    assert list_environments(["module"]) == []


def test_family_is_the_entry_point_or_module() -> None:
    assert family_of("reasoning_gym:gcd") == "reasoning_gym"
    assert family_of("tests.env.toys:Countdown") == "module"
    assert registry.families()[-1] == "module"
    assert {"math", "reasoning_gym", "synthetic"} < set(registry.families())


def test_replica_refuses_to_serve_what_is_not_installed() -> None:
    assert registry.served([]) == registry.families()
    assert registry.served(["module"]) == ["module"]
    with pytest.raises(Fatal, match="no environment family 'reasoning_gim' is installed here; did you mean 'reasoning_gym'"):
        registry.served(["reasoning_gim"])


def test_module_and_attribute_lead_to_a_class() -> None:
    assert find("tests.env.toys:Countdown") is Countdown


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reasoning_gym:gdc", "no environment 'reasoning_gym:gdc'; did you mean 'reasoning_gym:gcd'"),
        ("reasoning_gym", "no environment 'reasoning_gym'; did you mean 'reasoning_gym:"),
        ("reasoning_gim:gcd", "no module 'reasoning_gim' on this replica; did you mean 'reasoning_gym:gcd'"),
        (
            "nothing_like_it",
            "no environment 'nothing_like_it'; known: calculator, code, compose, exact_words, math, multi_hop, reasoning_gym, synthetic; "
            "a class that",
        ),
        ("tests.env.toys:Countup", "module 'tests.env.toys' has no 'Countup'; did you mean 'Countdown'"),
        ("tests.env.toys:not_an_environment", "is not an environment: expected a subclass"),
        ("subprocess:Popen", "is not an environment"),
        ("tests.env.toys:WithoutStep", "does not define step"),
        ("tests.env.missing:X", "no module 'tests.env.missing'"),
    ],
)
def test_wrong_name_is_answered_with_what_is_wrong(name: str, message: str) -> None:
    with pytest.raises(UnknownEnvironment) as caught:
        build(name, {})
    assert message in str(caught.value)


def test_options_arrive_as_the_declared_types() -> None:
    built = build("tests.env.toys:Typed", {"sizes": [3, 4], "required": True, "rate": 1})
    assert isinstance(built, Typed)
    assert (built.sizes, built.words, built.rate, built.required) == ((3, 4), None, 1.0, True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the option 'required'"),
        ({"required": True, "rat": 1}, "has no option 'rat'; did you mean 'rate'?"),
        ({"required": "yes"}, "option 'required': must be true or false, not 'yes'"),
        ({"required": True, "words": ["a", 1]}, "option 'words.1': must be a text, not 1"),
        ({"required": True, "sizes": [1]}, "option 'sizes.1': required, but not given"),
    ],
)
def test_wrong_options_name_the_option_and_what_was_expected(options: dict[str, object], message: str) -> None:
    with pytest.raises(WrongOptions) as caught:
        build("tests.env.toys:Typed", options)  # pyright: ignore
    assert message in str(caught.value)
    assert "tests.env.toys:Typed" in str(caught.value)


def test_class_that_takes_any_option_and_checks_none_gets_none_of_a_task() -> None:
    assert isinstance(build("tests.env.toys:TakesAny", {}), Countdown)
    with pytest.raises(WrongOptions, match=r"'tests.env.toys:TakesAny': a task may give no option, such as 'start': its constructor"):
        build("tests.env.toys:TakesAny", {"start": 2})


def test_the_environments_own_objection_is_passed_on() -> None:
    with pytest.raises(WrongOptions, match="start is 0, expected 1 or more"):
        build("tests.env.toys:Countdown", {"start": 0})


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("reasoning_gym:gcd", {"min_numbre": 2}, "has no option 'min_numbre'; did you mean 'min_number"),
        ("reasoning_gym:gcd", {"min_value": "two"}, "option 'min_value': must be a whole number, not 'two'"),
        ("reasoning_gym:gcd", {"min_numbers": 9, "max_numbers": 2}, "max_numbers must be >= min_numbers"),
        ("reasoning_gym:gcd", {"seed": 3}, "rows and their seed come from the task"),
        ("reasoning_gym:composite", {}, "Must specify at least one dataset"),
        ("reasoning_gym:leg_counting", {"min_animals": -1}, "environment 'reasoning_gym:leg_counting'"),
    ],
)
def test_data_sets_check_their_own_configuration(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(WrongOptions) as caught:
        build(name, options)  # pyright: ignore
    assert message in str(caught.value)

"""The form of a task."""

from typing import get_type_hints

from common.spec import Section, TaskSpec, parse_spec
from gateway_svc.problems import FieldError
from gateway_svc.web.forms import Filled, FormChoices, filled_from, read_form, task_form
from tests.support.scheduler.stages import spec


def test_form_has_every_field_of_a_task_file_but_its_tenant() -> None:
    paths = {one.path for part in task_form(Filled()).fieldsets for one in part.inputs}
    sections = {name: model for name, model in get_type_hints(TaskSpec).items() if isinstance(model, type) and issubclass(model, Section)}

    expected = {f"{name}.{leaf}" for name, model in sections.items() for leaf in model.model_fields}
    expected |= set(TaskSpec.model_fields) - set(sections) - {"tenant"}
    assert paths == expected


def test_a_spec_survives_the_form() -> None:
    given = parse_spec(
        spec(
            environment={"name": "toy", "options": {"rows": [1, "zwei"], "deep": {"a": None}}, "tools": ["calculator"]},
            sampling={"stop": ["</s>", "END"], "temperature": 0.7},
            optimizer={"betas": [0.8, 0.99], "learning_rate": 1e-5},
            lora={"rank_stabilized": True},
            evaluation={"every": 2, "protocol": [{"name": "greedy"}]},
        )
    ).model_dump(mode="json", exclude_none=True)

    found = read_form(filled_from(given))

    assert parse_spec({**found, "tenant": given["tenant"]}).model_dump(mode="json", exclude_none=True) == given


def test_what_is_no_number_or_no_json_stays_as_it_was_written() -> None:
    found = read_form(
        {
            "name": " a ",
            "steps": "many",
            "seed": "9" * 30,
            "sampling.temperature": "nan",
            "environment.options": '{"a": 1, "a": 2}',
            "environment.weights": "[[[",
            "optimizer.betas": "[0.9, NaN]",
            "unknown.field": "x",
            "lora.rank": "",
        }
    )

    assert found == {
        "name": "a",
        "steps": "many",
        "seed": "9" * 30,
        "sampling": {"temperature": "nan"},
        "environment": {"options": '{"a": 1, "a": 2}', "weights": "[[["},
        "optimizer": {"betas": "[0.9, NaN]"},
    }


def test_errors_are_at_their_fields() -> None:
    wrong = {"steps": "too few", "evaluation.protocol.0.seed": "negative", "nothing": "odd", "": "bad", "tenant": "missing"}
    form = task_form(Filled({"steps": "0"}, [FieldError(field, reason) for field, reason in wrong.items()]), FormChoices(["tiny"], ["toy"]))
    shown = {one.path: one for part in form.fieldsets for one in part.inputs}

    assert (shown["steps"].value, shown["steps"].error) == ("0", "too few")
    assert shown["evaluation.protocol"].error == "evaluation.protocol.0.seed: negative"
    assert form.general == ["nothing: odd; bad"]
    assert form.tenant_error == "missing"
    assert shown["pool"].choices == ["tiny"]
    assert {path: one.suggestions for path, one in shown.items() if one.suggestions} == {"environment.name": ["toy"]}
    assert [part.title for part in form.fieldsets if part.is_open] == ["Task", "environment", "evaluation"]

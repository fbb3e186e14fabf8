"""Requests as values: every field is honoured, harmless or refused by name."""

import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.completion_create_params import CompletionCreateParamsBase as ChatParams
from openai.types.completion_create_params import CompletionCreateParamsBase as TextParams
from openai.types.fine_tuning.job_create_params import JobCreateParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase as ResponseParams
from pydantic import JsonValue

from gateway_svc.bodies import read_json
from gateway_svc.openai.chat.request import ChatRequest
from gateway_svc.openai.jobs.request import JobRequest
from gateway_svc.openai.models import PlainName, VersionName, parse_name
from gateway_svc.openai.parsing import HARMLESS, REFUSED, WholeRequest, parse_request
from gateway_svc.openai.responses.request import ResponseRequest
from gateway_svc.openai.sampling.settings import SEEDS, seed_of_choice
from gateway_svc.openai.text import CompletionRequest
from gateway_svc.problems import Problem

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
TEXT: dict[str, Any] = {"model": "tiny", "prompt": "x"}
RESPONSE: dict[str, Any] = {"model": "tiny", "input": "x"}
JOB: dict[str, Any] = {"model": "tiny", "training_file": "env:toy", "method": {"type": "reinforcement"}}
REQUESTS: list[tuple[type[WholeRequest], dict[str, Any], Any]] = [
    (ChatRequest, CHAT, ChatParams), (CompletionRequest, TEXT, TextParams), (ResponseRequest, RESPONSE, ResponseParams),
    (JobRequest, JOB, JobCreateParams),
]  # fmt: skip
FUNCTION = {"type": "function", "name": "add", "parameters": None}
values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def problem_of(model: type[WholeRequest], body: JsonValue) -> Problem:
    with pytest.raises(Problem) as caught:
        parse_request(model, body)
    return caught.value


@pytest.mark.parametrize(("model", "body", "params"), REQUESTS)
def test_every_field_of_the_clients_is_dealt_with_by_name(model: type[WholeRequest], body: dict[str, Any], params: Any) -> None:
    known = {*model.model_fields, *model.harmless, *model.refused}

    assert set(get_type_hints(params)) - {"stream"} <= known


@pytest.mark.parametrize(("model", "body", "params"), REQUESTS)
@given(name=st.text(min_size=1, max_size=12), value=values)
def test_an_unknown_field_is_refused_by_name(
    model: type[WholeRequest], body: dict[str, Any], params: Any, name: str, value: JsonValue
) -> None:
    if name not in {*model.model_fields, *model.harmless, *model.refused}:
        found = problem_of(model, body | {name: value})
        assert (found.status, found.code, found.errors[0].field) == (400, "unsupported_parameter", name)


@pytest.mark.parametrize(("model", "body", "params"), REQUESTS)
@given(data=st.data())
def test_any_value_of_any_field_is_honoured_harmless_or_an_error_that_names_it(
    model: type[WholeRequest], body: dict[str, Any], params: Any, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted({*model.model_fields, *model.harmless, *model.refused})))
    value = data.draw(values)
    try:
        parsed = parse_request(model, body | {name: value})
    except Problem as problem:
        assert problem.status == 400
        assert problem.errors
        return
    if name in model.model_fields or value is None:
        assert parsed is not None
    else:
        assert model.harmless[name].permits(value)


@given(st.one_of(values, st.binary(max_size=20).map(lambda raw: raw.decode("latin-1"))))
def test_a_body_that_is_no_request_is_an_error(body: JsonValue) -> None:
    for model, _, _ in REQUESTS:
        assert problem_of(model, body).status == 400


@pytest.mark.parametrize("name", HARMLESS)
def test_null_is_an_absent_field(name: str) -> None:
    assert parse_request(ChatRequest, CHAT | {name: None, "seed": 1}) == parse_request(ChatRequest, CHAT | {"seed": 1})


REFUSALS: list[tuple[type[WholeRequest], dict[str, Any], str]] = [
    *((ChatRequest, CHAT | {name: "x"}, name) for name in REFUSED if name not in ("metadata",)),
    (ChatRequest, CHAT | {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}, "messages[0].content"),
    (ChatRequest, CHAT | {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]}, "messages[0].content"),
    (ChatRequest, CHAT | {"messages": [{"role": "assistant", "content": "a", "refusal": "no"}]}, "messages[0].refusal"),
    (ChatRequest, CHAT | {"messages": [{"role": "assistant", "content": "a", "reasoning_content": "r"}]}, "messages[0].reasoning_content"),
    (ChatRequest, CHAT | {"messages": [{"role": "function", "name": "f", "content": "a"}]}, "messages[0]"),
    (ChatRequest, CHAT | {"messages": [{"role": "user", "content": "a", "weight": 1}]}, "messages[0].weight"),
    (ChatRequest, CHAT | {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0]"),
    (ChatRequest, CHAT | {"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict"),
    (ChatRequest, CHAT | {"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
    (ChatRequest, CHAT | {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
    (ResponseRequest, RESPONSE | {"tools": [{"type": "web_search"}]}, "tools[0]"),
    (ResponseRequest, RESPONSE | {"tools": [FUNCTION | {"strict": True}]}, "tools[0].strict"),
    (ResponseRequest, RESPONSE | {"input": [{"type": "reasoning", "id": "rs_1", "summary": []}]}, "input[0]"),
    (ResponseRequest, RESPONSE | {"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
    (ResponseRequest, RESPONSE | {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
    (ResponseRequest, RESPONSE | {"include": ["reasoning.encrypted_content"]}, "include"),
    (ResponseRequest, RESPONSE | {"text": {"format": {"type": "json_object"}}}, "text.format"),
    (ResponseRequest, RESPONSE | {"text": {"verbosity": "low"}}, "text.verbosity"),
    (CompletionRequest, TEXT | {"suffix": "x"}, "suffix"),
    (CompletionRequest, TEXT | {"echo": True}, "echo"),
]


@pytest.mark.parametrize(("model", "body", "param"), REFUSALS)
def test_what_is_not_honoured_is_refused_by_name(model: type[WholeRequest], body: dict[str, Any], param: str) -> None:
    found = problem_of(model, body)

    assert (found.status, found.code, found.errors[0].field) == (400, "unsupported_parameter", param)


WRONG: list[tuple[type[WholeRequest], dict[str, Any], str]] = [
    (ChatRequest, CHAT | {"temperature": "1"}, "temperature"),
    (ChatRequest, CHAT | {"temperature": 2.1}, "temperature"),
    (ChatRequest, CHAT | {"seed": True}, "seed"),
    (ChatRequest, CHAT | {"n": 9}, "n"),
    (ChatRequest, CHAT | {"stop": ["a"] * 5}, "stop"),
    (ChatRequest, CHAT | {"stop": ["a", ""]}, "stop[1]"),
    (ChatRequest, CHAT | {"logit_bias": {"one": 1}}, "logit_bias"),
    (ChatRequest, CHAT | {"top_logprobs": 2}, "top_logprobs"),
    (ChatRequest, CHAT | {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (ChatRequest, CHAT | {"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
    (ChatRequest, CHAT | {"stream_options": {"include_usage": True}}, "stream_options"),
    (ChatRequest, CHAT | {"messages": []}, "messages"),
    (CompletionRequest, TEXT | {"best_of": 2}, "best_of"),
    (CompletionRequest, TEXT | {"prompt": [1, -1]}, "prompt"),
    (ResponseRequest, RESPONSE | {"top_logprobs": 2}, "top_logprobs"),
]


@pytest.mark.parametrize(("model", "body", "param"), WRONG)
def test_what_is_wrong_is_named(model: type[WholeRequest], body: dict[str, Any], param: str) -> None:
    found = problem_of(model, body)

    assert (found.status, found.code) == (400, "invalid_value")
    assert found.errors[0].field.startswith(param)


def test_settings_reach_the_message() -> None:
    settings = {
        "temperature": 0, "top_p": 0.5, "top_k": -1, "min_p": 0.1, "presence_penalty": 1, "frequency_penalty": -1,
        "repetition_penalty": 1.2, "logit_bias": {"7": -100}, "seed": 3, "stop": "end",
    }  # fmt: skip
    chat = parse_request(ChatRequest, CHAT | settings | {"max_completion_tokens": 5, "logprobs": True})
    assert isinstance(chat, ChatRequest)
    found = chat.choices()[0].sampling.model_dump()

    assert found == settings | {"top_k": 0, "logit_bias": {"7": -100.0}, "stop": ["end"], "max_tokens": 5, "top_logprobs": 0}


def test_tools_that_may_not_be_called_are_not_shown() -> None:
    tools = [{"type": "function", "function": {"name": "add"}}]
    shown, hidden = (parse_request(ChatRequest, CHAT | {"tools": tools, "tool_choice": choice}) for choice in ("auto", "none"))

    assert isinstance(shown, ChatRequest)
    assert isinstance(hidden, ChatRequest)
    assert [one["type"] for one in shown.choices()[0].prompt.tools] == ["function"]
    assert hidden.choices()[0].prompt.tools == []


@given(st.integers(0, SEEDS - 1), st.integers(1, 8))
def test_seeds_of_choices_differ_and_do_not_depend_on_their_number(seed: int, number: int) -> None:
    found = [seed_of_choice(seed, choice) for choice in range(number)]

    assert found[0] == seed
    assert len({*found}) == number
    assert all(0 <= one < SEEDS for one in found)


@given(st.text(max_size=30))
def test_a_name_means_a_pool_a_version_or_nothing(name: str) -> None:
    try:
        found = parse_name(name)
    except Problem as problem:
        assert (problem.status, problem.code) == (404, "model_not_found")
        return
    assert found == PlainName(name) if "@" not in name else str(found) == name


@pytest.mark.parametrize(("name", "found"), [("a-1@0", VersionName("a-1", 0)), ("a@best", VersionName("a", "best")), ("a", PlainName("a"))])
def test_names_of_models(name: str, found: PlainName | VersionName) -> None:
    assert parse_name(name) == found


def test_the_models_are_as_strict_from_json() -> None:
    assert parse_request(ChatRequest, read_json(json.dumps(CHAT | {"seed": 1}).encode())) == parse_request(ChatRequest, CHAT | {"seed": 1})

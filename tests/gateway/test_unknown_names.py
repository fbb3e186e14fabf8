"""Parameters and routes that there are not: refused by name, on OpenAI's routes in OpenAI's shape."""

import httpx
import pytest


@pytest.mark.parametrize(
    ("path", "field"),
    [("/v1/tasks?stat=running", "stat"), ("/v1/pools?limit=3", "limit"), ("/v1/tasks/a/steps?befor=3", "befor"), ("/v1/aliases?x", "x")],
)
async def test_a_parameter_that_there_is_not_is_refused_by_name(wrong: httpx.AsyncClient, path: str, field: str) -> None:
    answer = await wrong.get(path)

    assert answer.status_code == 400
    assert answer.json()["errors"] == [{"field": field, "reason": "there is no such parameter here"}]


@pytest.mark.parametrize(
    "path", ["/v1/models?limit=3", "/v1/fine_tuning/jobs?metadat=x", "/v1/files?sort=x", "/v1/fine_tuning/jobs/a?metadata[a]=b"]
)
async def test_openais_routes_refuse_it_in_openais_shape(wrong: httpx.AsyncClient, path: str) -> None:
    answer = await wrong.get(path)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "unsupported_parameter"
    assert answer.json()["error"]["param"] == path.partition("?")[2].partition("=")[0]


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/images/generations", "/v1/batches", "/v1/whatever/comes"])
async def test_routes_of_openai_that_there_are_not_answer_in_openais_shape(wrong: httpx.AsyncClient, path: str) -> None:
    answer = await wrong.post(path, json={})

    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "invalid_request_error"
    for own in ("/v1/tasks/a/b/c", "/v1/aliases/a/b"):
        assert (await wrong.get(own)).json()["status"] == 404

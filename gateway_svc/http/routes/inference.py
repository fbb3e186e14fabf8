"""OpenAI's routes of inference."""

import time
from collections.abc import Iterable

from fastapi import APIRouter, Request, Response

from common.messages.serving import ServedDelta
from gateway_svc.http.errors import Family
from gateway_svc.http.event_stream import Sse
from gateway_svc.http.gateway import Acting
from gateway_svc.http.openai_family import DONE, OpenAIRoute, Sampling, chunk, json_answer, render, responses
from gateway_svc.openai.chat.answer import ChatAnswer, ChatStream, chat_answer
from gateway_svc.openai.chat.request import ChatRequest
from gateway_svc.openai.models import Model, ModelList, as_model, listed, resolve
from gateway_svc.openai.responses.answer import ResponseStream, response_answer
from gateway_svc.openai.responses.request import ResponseRequest
from gateway_svc.openai.responses.shapes import Event, ResponseOf
from gateway_svc.openai.sampling.choices import whole
from gateway_svc.openai.text import CompletionRequest, TextAnswer, TextStream, text_answer
from gateway_svc.problems import Problem

MAX_BODY_BYTES = 8 * 1024 * 1024
ERRORS = (400, 401, 402, 403, 404, 408, 409, 413, 415, 429, 500, 503)
PATHS = ("/v1/chat", "/v1/completions", "/v1/responses", "/v1/models")


class InferenceRoute(OpenAIRoute):
    """Route whose prompts may be token ids."""

    max_ids = {"/v1/completions": 131_072}


router = APIRouter(prefix="/v1", tags=["inference"], route_class=InferenceRoute)
FAMILY = Family(router, render, (*PATHS, "/v1"), dict.fromkeys(PATHS[:3], MAX_BODY_BYTES))


@router.post("/chat/completions", responses=responses(ChatAnswer, *ERRORS, is_streamed=True), response_class=Response)
async def chat_completions(request: Request, caller: Acting, body: ChatRequest) -> Response:
    """A reply to a conversation, whole or streamed."""
    sampling = await Sampling.of(request, caller, body.model, body.choices(), is_whole=not body.stream)
    if not body.stream:
        deltas = await sampling.whole(whole(sampling.deltas, body.n))
        answer = chat_answer(sampling.head, deltas, logprobs=body.logprobs, metadata=body.metadata)
        return json_answer(answer, headers=sampling.headers)
    stream = ChatStream(sampling.head, body.n, include_usage=body.include_usage)

    def lines(choice: int, delta: ServedDelta) -> Iterable[Sse]:
        return map(chunk, stream.chunks(choice, delta))

    return await sampling.streamed(lines, lambda: [*map(chunk, stream.end()), DONE])


@router.post("/completions", responses=responses(TextAnswer, *ERRORS, is_streamed=True), response_class=Response)
async def completions(request: Request, caller: Acting, body: CompletionRequest) -> Response:
    """A continuation of a text or of tokens, whole or streamed."""
    choices = body.choices()
    sampling = await Sampling.of(request, caller, body.model, choices, is_whole=not body.stream)
    if not body.stream:
        deltas = await sampling.whole(whole(sampling.deltas, len(choices)))
        return json_answer(text_answer(sampling.head, deltas), headers=sampling.headers)
    stream = TextStream(sampling.head, len(choices), include_usage=body.include_usage)

    def lines(choice: int, delta: ServedDelta) -> Iterable[Sse]:
        return map(chunk, stream.chunks(choice, delta))

    return await sampling.streamed(lines, lambda: [*map(chunk, stream.end()), DONE])


@router.post("/responses", responses=responses(ResponseOf, *ERRORS, is_streamed=True), response_class=Response)
async def create_response(request: Request, caller: Acting, body: ResponseRequest) -> Response:
    """A reply to items, whole or as typed events. Nothing is kept."""
    sampling = await Sampling.of(request, caller, body.model, [body.choice()], is_whole=not body.stream)
    stream = ResponseStream(sampling.head, body, clock=time.time)
    if not body.stream:
        (deltas,) = await sampling.whole(whole(sampling.deltas, 1))
        return json_answer(response_answer(stream, deltas), headers=sampling.headers)

    def failed(problem: Problem) -> Sse:
        return _named(stream.failed("server_error" if problem.status >= 500 else "invalid_prompt", problem.detail))

    def lines(_: int, delta: ServedDelta) -> Iterable[Sse]:
        return map(_named, stream.events(delta))

    return await sampling.streamed(lines, lambda: (), first=map(_named, stream.begin()), error=failed)


def _named(event: Event) -> Sse:
    return Sse(event.model_dump_json(), event=event.type)


@router.get("/models", responses=responses(ModelList, 401, 403, 429, 503))
async def list_models(caller: Acting) -> ModelList:
    """Aliases, base models, and the latest version of each task that has one."""
    return await listed(caller.door)


@router.get("/models/{model:path}", responses=responses(Model, 401, 403, 404, 429, 503))
async def retrieve_model(caller: Acting, model: str) -> Model:
    """What a name means now; `id` is the exact name."""
    return as_model(await resolve(caller.door, model))

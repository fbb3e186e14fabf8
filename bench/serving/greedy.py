"""Greedy answers of versions through HTTP against transformers and PEFT with the adapter from `adapter.tar`.

Each token must be the likeliest one behind the tokens before it, and its log-probability within 1e-3. Then a stream of `@latest` of a task
that trains: a step comes meanwhile, `@latest` moves, and all tokens of the stream are those of the version that it began with.
"""

import asyncio
import json
from typing import Any

import aiohttp

from bench.harness.services import BenchError
from bench.serving.http import CHAT, TEXT, Answer, ask, session
from bench.serving.oracle import oracle, tokenizer
from bench.serving.overheard import Overheard, overhearing
from bench.serving.stacks import POOL, TENANT, Serving, serving_stack, task, trained
from marlaas.client import Client

TIE = 1e-5
TOKENS = 24
LONG = 400
TRIES = 8


def run(*, small: bool) -> dict[str, Any]:
    with serving_stack() as serving:
        return asyncio.run(_compared(serving, prompts=4 if small else 50, steps=2 if small else 12))


async def _compared(serving: Serving, prompts: int, steps: int) -> dict[str, Any]:
    async with serving.client() as client, session(serving.key) as http, overhearing(serving.nats_url, serving.creds) as heard:
        name = await trained(client, steps)
        models = {"base": POOL, "version 1": f"{name}@1", "last version": f"{name}@{steps}"}
        answers = {kind: await _answers(http, serving.urls[0], model, prompts) for kind, model in models.items()}
        found: dict[str, Any] = {}
        for kind, model in models.items():
            tar = None if kind == "base" else await _adapter(http, serving.urls[0], model)
            found[kind] = await _judged(answers[kind], heard, tar)
        texts = {kind: [one.text for one in those] for kind, those in answers.items()}
        moved = await _moved(client, http, serving.urls[0], heard)
    kinds = list(models)
    pairs = [(one, other) for place, one in enumerate(kinds) for other in kinds[place + 1 :]]
    different = {f"{one}, {other}": sum(a != b for a, b in zip(texts[one], texts[other], strict=True)) for one, other in pairs}
    return {"prompts": prompts, "steps": steps, "models": found, "answers_that_differ": different, "step_in_mid_stream": moved}


def _question(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"How many letters has the word number {number} of {number + 3} * {number % 7}?"}]


async def _answers(http: aiohttp.ClientSession, url: str, model: str, prompts: int) -> list[Answer]:
    body: dict[str, Any] = {"model": model, "temperature": 0, "max_tokens": TOKENS, "logprobs": True}
    asked = [{**body, "messages": _question(number), "stream": number % 2 == 0} for number in range(prompts)]
    found = await asyncio.gather(*(ask(http, url, CHAT, one) for one in asked))
    if wrong := [one.error or str(one.status) for one in found if not one.is_complete]:
        raise BenchError(f"{model} does not answer: {wrong[0]}")
    return found


async def _adapter(http: aiohttp.ClientSession, url: str, model: str) -> bytes:
    name, _, version = model.partition("@")
    async with http.get(f"{url}/v1/tasks/{name}/versions/{version}/adapter.tar", params={"tenant": TENANT}) as response:
        if response.status != 200:
            raise BenchError(f"no adapter of {model}: {await response.text()}")
        return await response.read()


async def _judged(answers: list[Answer], heard: Overheard, tar: bytes | None) -> dict[str, Any]:
    found, words = [], tokenizer()
    with oracle(tar) as judge:
        for number, answer in enumerate(answers):
            await heard.ended(f"{answer.request}n0")
            prompt = words.apply_chat_template(_question(number), add_generation_prompt=True, return_dict=False)
            found.append((answer, *judge.judge(list(prompt), heard.ids(f"{answer.request}n0"))))
    return _summary(found)


def _summary(found: list[tuple[Answer, list[float], list[float]]]) -> dict[str, Any]:
    tokens = sum(len(one) for _, one, _ in found)
    above = [gap for _, _, gaps in found for gap in gaps]
    return {
        "tokens": tokens,
        "not_the_likeliest": sum(gap > 0 for gap in above),
        "of_these_no_tie": sum(gap > TIE for gap in above),
        "largest_logprob_difference": max(abs(a - b) for one, of, _ in found for a, b in zip(one.logprobs, of, strict=True)),
    }


async def _moved(client: Client, http: aiohttp.ClientSession, url: str, heard: Overheard) -> dict[str, Any]:
    """A stream during which `@latest` moved. Raises: BenchError when none of some was."""
    name = await client.submit(task(1000, seed=2))
    try:
        await _version(http, url, name, at_least=1)
        for number in range(TRIES):
            found = await _long_stream(http, url, name, heard, number)
            if found is not None:
                return {"tries": number + 1, **found}
    finally:
        await client.cancel(name)
    raise BenchError("no step came during a stream")


async def _long_stream(http: aiohttp.ClientSession, url: str, name: str, heard: Overheard, number: int) -> dict[str, Any] | None:
    words = tokenizer()
    banned = tuple({words.eos_token_id, *words.all_special_ids})
    prompt = words.apply_chat_template(_question(number), add_generation_prompt=True, return_dict=False)
    bias = {str(token): -100 for token in banned}
    body = {"model": f"{name}@latest", "prompt": list(prompt), "temperature": 0, "max_tokens": LONG, "logprobs": 0, "logit_bias": bias}
    answer = Answer()
    streaming = asyncio.create_task(ask(http, url, TEXT, {**body, "stream": True}, answer))
    latest, tar = 0, b""
    while not streaming.done():
        if answer.model and not tar:
            tar = await _adapter(http, url, answer.model)  # a task that trains soon deletes it
        latest = await _version(http, url, name, at_least=0)
        await asyncio.sleep(0.02)
    began_with = int(answer.model.partition("@")[2])
    if not tar or latest <= began_with or not answer.is_complete:
        return None
    await heard.ended(f"{answer.request}n0")
    with oracle(tar) as judge:
        logprobs, above = judge.judge(list(prompt), heard.ids(f"{answer.request}n0"), banned)
    return {"began_with": began_with, "latest_before_its_end": latest, **_summary([(answer, logprobs, above)])}


async def _version(http: aiohttp.ClientSession, url: str, name: str, at_least: int) -> int:
    while True:
        async with http.get(f"{url}/v1/models/{name}@latest", params={"tenant": TENANT}) as response:
            found = json.loads(await response.read())
        version = int(str(found.get("id", "")).partition("@")[2] or 0)
        if version >= at_least:
            return version
        await asyncio.sleep(0.2)

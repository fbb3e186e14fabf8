"""The playground: requests of its form to each model, the same as code, and the models' answers."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pprint import pformat

from pydantic import JsonValue

from gateway_svc.openai.chat.answer import ChatAnswer, TokenLogprob
from gateway_svc.openai.errors import ErrorAnswer
from gateway_svc.web.text import escaped

MAX_MODELS = 4
MAX_TURNS = 20
"""Maximum messages after the system message."""
ROLES = ("user", "assistant")
EXTENSIONS = ("top_k", "min_p", "repetition_penalty")
"""Settings without an argument in the `openai` client."""
FIRST = {"max_tokens": "256", "top_logprobs": "5"}
MAX_SHOWN_TOKENS = 500
"""Maximum rows of a table of tokens."""


@dataclass(frozen=True)
class Setting:
    name: str
    label: str
    hint: str


SETTINGS = (
    Setting("max_tokens", "Maximum tokens", "empty: as many as the context has room for"),
    Setting("temperature", "Temperature", "0 to 2; empty: 1"),
    Setting("top_p", "Top p", "above 0, to 1; empty: 1"),
    Setting("top_k", "Top k", "empty: all tokens"),
    Setting("min_p", "Min p", "0 to 1; empty: 0"),
    Setting("presence_penalty", "Presence penalty", "−2 to 2; empty: 0"),
    Setting("frequency_penalty", "Frequency penalty", "−2 to 2; empty: 0"),
    Setting("repetition_penalty", "Repetition penalty", "above 0, to 10; empty: 1"),
    Setting("seed", "Seed", "empty: another one for each request"),
    Setting("top_logprobs", "Token probabilities", "alternatives for each token, 0 to 20; empty: none are shown"),
)
"""Numeric settings; names as in OpenAI's API."""


@dataclass(frozen=True)
class Turn:
    role: str
    text: str


@dataclass(frozen=True)
class Playground:
    """Content of the form as typed."""

    models: Sequence[str]
    """MAX_MODELS names; unused ones are empty."""
    system: str
    turns: Sequence[Turn]
    settings: Mapping[str, str]
    stop: str
    """Stop strings, one per line."""

    @property
    def used(self) -> list[int]:
        """Indices of the models that are named."""
        return [number for number, model in enumerate(self.models) if model]

    def request(self, number: int) -> dict[str, JsonValue]:
        """Body of a chat completion for one model. Invalid numbers stay text, so that the route reports the error."""
        given = {name: _number(text) for name, text in self.settings.items() if text}
        messages = [("system", self.system), *((turn.role, turn.text) for turn in self.turns)]
        body: dict[str, JsonValue] = {"model": self.models[number]}
        body["messages"] = [{"role": role, "content": text} for role, text in messages if text]
        body |= given
        if "top_logprobs" in given:
            body["logprobs"] = True
        if stop := [line for line in self.stop.split("\n") if line]:
            body["stop"] = [*stop]
        return body

    def with_turns(self, change: int) -> "Playground":
        """A copy with one more empty turn, or without the last one."""
        fewer, more = self.turns[: max(len(self.turns) - 1, 1)], [*self.turns, Turn(ROLES[len(self.turns) % 2], "")]
        turns = fewer if change < 0 else more[:MAX_TURNS]
        return Playground(self.models, self.system, turns, self.settings, self.stop)


def first_playground(models: Sequence[str]) -> Playground:
    """The initial form."""
    return Playground(_slots([model.strip() for model in models]), "", [Turn("user", "")], FIRST, "")


def read_playground(form: Mapping[str, str]) -> Playground:
    """Parse a submitted form. Unknown roles count as `user`."""
    models = [form.get(f"model.{number}", "").strip() for number in range(MAX_MODELS)]
    turns = [
        Turn(role if (role := form.get(f"role.{number}", "")) in ROLES else "user", form[f"text.{number}"])
        for number in range(MAX_TURNS)
        if f"text.{number}" in form
    ]
    settings = {setting.name: form.get(setting.name, "").strip() for setting in SETTINGS}
    return Playground(models, form.get("system", ""), turns or [Turn("user", "")], settings, form.get("stop", ""))


def as_code(shown: Playground, address: str) -> dict[str, str]:
    """Equivalent programs by language. `address`: URL of the API, such as `http://127.0.0.1:8000/v1`."""
    bodies = [shown.request(number) for number in shown.used]
    return {"curl": "\n".join(_curl(body, address) for body in bodies), "Python": _python(bodies, address)} if bodies else {}


def _curl(body: dict[str, JsonValue], address: str) -> str:
    content = escaped(json.dumps({**body, "stream": True}, ensure_ascii=False, indent=2))
    headers = "-H \"Authorization: Bearer $MARLAAS_KEY\" -H 'Content-Type: application/json'"
    return f"curl -N {shlex.quote(f'{address}/chat/completions')} {headers} -d {shlex.quote(content)}\n"


def _python(bodies: Sequence[dict[str, JsonValue]], address: str) -> str:
    body = {name: value for name, value in bodies[0].items() if name != "model"}
    extra = {name: body.pop(name) for name in EXTENSIONS if name in body}
    arguments = body | ({"extra_body": extra} if extra else {})
    lines = [
        "import os",
        "",
        "from openai import OpenAI",
        "",
        f'client = OpenAI(base_url={address!r}, api_key=os.environ["MARLAAS_KEY"])',
        f"for model in {[one['model'] for one in bodies]!r}:",
        "    stream = client.chat.completions.create(",
        "        model=model,",
        *(f"        {name}={_indented(value)}," for name, value in arguments.items()),
        "        stream=True,",
        "    )",
        "    for chunk in stream:",
        '        print(chunk.choices[0].delta.content or "", end="", flush=True)',
        "    print()",
    ]
    return escaped("\n".join(lines) + "\n")


def _indented(value: JsonValue) -> str:
    return pformat(value, width=100, sort_dicts=False).replace("\n", "\n        ")


def _number(text: str) -> JsonValue:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _slots(models: Sequence[str]) -> list[str]:
    return [*models, *[""] * MAX_MODELS][:MAX_MODELS]


@dataclass(frozen=True)
class TokenRow:
    token: str
    share: float
    """Probability of the token, from 0 to 1."""
    others: Sequence[tuple[str, float]]


@dataclass(frozen=True)
class Answer:
    model: str
    """Exact model name; the requested name if there is no answer."""
    text: str = ""
    reasoning: str = ""
    error: str = ""
    figures: str = ""
    tokens: Sequence[TokenRow] = ()
    left_out: int = 0
    """Number of tokens that the table leaves out."""


def failed_answer(model: str, status: int, content: bytes) -> Answer:
    return Answer(model, error=f"{status}: {ErrorAnswer.model_validate_json(content).error.message}")


def whole_answer(content: bytes) -> Answer:
    """Answer to show, from the body of a chat completion."""
    found = ChatAnswer.model_validate_json(content)
    choice, usage = found.choices[0], found.usage
    tokens = choice.logprobs.content if choice.logprobs is not None else []
    return Answer(
        model=found.model,
        text=choice.message.content or "",
        reasoning=choice.message.reasoning_content or "",
        figures=f"{usage.completion_tokens} tokens after {usage.prompt_tokens}; it ended by {choice.finish_reason}",
        tokens=[_row(token) for token in tokens[:MAX_SHOWN_TOKENS]],
        left_out=max(len(tokens) - MAX_SHOWN_TOKENS, 0),
    )


def _row(token: TokenLogprob) -> TokenRow:
    return TokenRow(token.token, math.exp(token.logprob), [(one.token, math.exp(one.logprob)) for one in token.top_logprobs])

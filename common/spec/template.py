"""Arguments of a chat template, from a task's `sampling.template`."""

import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated

from pydantic import AfterValidator, Field, JsonValue

from common.formats.bounds import Few
from common.formats.wrong_values import VARIABLE

MAX_ARGUMENTS = 16
MAX_ARGUMENT_BYTES = 4096
"""Maximum bytes of all arguments as JSON: they are part of every request of a turn."""
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
NOT_ARGUMENTS = frozenset({"messages", "tools", "documents", "add_generation_prompt", *SPECIAL_TOKENS})
"""Variables of a chat template that the sampler or its tokenizer sets."""


def _bounded(arguments: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if (size := len(json.dumps(arguments).encode())) > MAX_ARGUMENT_BYTES:
        raise ValueError(f"the arguments have {size} bytes as JSON, the maximum is {MAX_ARGUMENT_BYTES}")
    return arguments


Argument = Annotated[str, Field(pattern=VARIABLE)]
TemplateArguments = Annotated[dict[Argument, JsonValue], Few(MAX_ARGUMENTS), AfterValidator(_bounded)]


def unknown_arguments(arguments: Mapping[str, JsonValue], known: Iterable[str]) -> Iterator[str]:
    """A message for each of `arguments` that a template with the variables `known` does not have."""
    variables = sorted(set(known) - NOT_ARGUMENTS)
    for name in arguments:
        if name not in variables:
            close = get_close_matches(name, variables, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known here: {', '.join(variables) or 'none'}"
            yield f"sampling.template.{name}: the model's chat template has no such argument; {hint}"

"""Variables of a chat template that a task may set."""

from typing import Any

from common.errors import Fatal
from common.spec import NOT_ARGUMENTS


def template_variables(tokenizer: Any) -> frozenset[str]:
    """Variables that the chat template, or any of several, reads and that are neither constants nor set by the tokenizer."""
    from jinja2 import TemplateError
    from jinja2.meta import find_undeclared_variables
    from transformers.utils.chat_template_utils import _compile_jinja_template  # with its extensions, which Jinja alone cannot parse

    written: Any = tokenizer.chat_template
    found: set[str] = set()
    for source in written.values() if isinstance(written, dict) else [written]:
        try:
            environment: Any = _compile_jinja_template(source).environment
        except TemplateError as error:
            raise Fatal(f"the model's chat template is not valid: {error}") from None
        found |= find_undeclared_variables(environment.parse(source))
    return frozenset(found - NOT_ARGUMENTS - tokenizer.special_tokens_map.keys())

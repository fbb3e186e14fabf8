"""Names that a tenant gives: of aliases and webhooks."""

import re

from common.client_api.errors import ClientError
from common.messages.tenancy.aliases import ALIAS_PATTERN, MAX_ALIAS_CHARS

RULE = f"letters, digits, and single '.', '_' and '-' between them, {MAX_ALIAS_CHARS} characters at most"


def is_name(text: str) -> bool:
    return len(text) <= MAX_ALIAS_CHARS and re.fullmatch(ALIAS_PATTERN, text) is not None


def check_name(text: str) -> None:
    """Raises: ClientError for what cannot be such a name, before anything is sent."""
    if not is_name(text):
        raise ClientError(f"name: {RULE}; not '{text[:100]}'")

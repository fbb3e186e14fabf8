"""Tool calls in a reply's text, for environments and for serving. Pure.

parsing.py finds calls and their ends, and separates a reply's thoughts from its text; schemas.py reads the schemas of their parameters
"""

from common.tool_calls.parsing import (
    DEFAULT_MARKS,
    MAX_CALLS,
    MAX_PARSED_CHARS,
    UNOPENED,
    MalformedCall,
    Reply,
    Thoughts,
    ToolCall,
    find_calls,
    without_calls,
    without_thoughts,
)
from common.tool_calls.schemas import Schema, text_parameter

__all__ = [
    "DEFAULT_MARKS", "MAX_CALLS", "MAX_PARSED_CHARS", "UNOPENED", "MalformedCall", "Reply", "Schema", "Thoughts", "ToolCall", "find_calls",
    "text_parameter", "without_calls", "without_thoughts",
]  # fmt: skip

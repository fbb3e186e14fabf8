"""Where tool calls end in a reply: a tag inside a text of a call does not end it, where the notation can tell. Pure."""

import json
import re
from functools import cached_property

TOOL_CALL_END = "</tool_call>"
FUNCTION_START = re.compile(r"\s*<function=[^>\s]+>")
FUNCTION_END = re.compile(r"\s*</function>\s*")
PARAMETER = re.compile(r"\s*<parameter=([^<>\s]{1,128})>")
PARAMETER_END = re.compile(r"</parameter>(?=\s*(?:<parameter=[^<>\s]{1,128}>|</function>))")
"""End of a parameter that its function's end or another parameter follows: any other is text."""
BLANKS = re.compile(r"\s*")
JSON = json.JSONDecoder()
LONGEST_TAG = 200
TOKEN_CHARS = 16
"""Length of a text's end in which an error of JSON may come from the cut: no literal or escape sequence is longer."""


class Reply:
    """One reply, or the beginning of one. All questions to it together take time linear in its length."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._after_parameter: dict[int, int | None] = {}
        """Where a function ends, by the place where one of its parameters begins."""

    def end_of_call(self, start: int, closing: str, *, is_whole: bool) -> int | None:
        """Where the closing tag of a call begins, whose opening tag ends at `start`; None: not in this text.

        Of a call that is malformed, or has no end outside of its texts, the first closing tag. `is_whole`: no more text comes.
        """
        first = self._text.find(closing, start)
        if first < 0:
            return None
        if closing != TOOL_CALL_END:
            return first
        function = FUNCTION_START.match(self._text, start)
        end = self._end_of_json(start, first) if function is None else self._end_of_function(function.end())
        if end is not None and self._text.startswith(closing, end):
            return end
        is_cut = end is None or closing.startswith(self._text[end : end + len(closing)])
        return None if is_cut and not is_whole else first

    def _end_of_json(self, start: int, first: int) -> int | None:
        """Where a JSON value and the blanks behind it end; None where the text does not say. `first`: how far to read at least."""
        size = first - start
        while True:
            part = self._text[start : start + size]  # the decoder counts lines from the beginning of what it is given
            is_all = start + size >= len(self._text)
            try:
                return _after_blanks(self._text, start + JSON.raw_decode(part, _after_blanks(part, 0))[1])
            except json.JSONDecodeError as error:
                if not error.msg.startswith("Unterminated string") and error.pos < len(part) - TOKEN_CHARS:
                    return first
            except (ValueError, RecursionError):
                return first
            if is_all:
                return None
            size *= 2

    def _end_of_function(self, start: int) -> int | None:
        """Where a function and the blanks behind it end, or where it is malformed; None where the text does not say."""
        at, passed = start, list[int]()
        while at not in self._after_parameter:
            passed.append(at)
            parameter = PARAMETER.match(self._text, at)
            end = self._end_of_parameter(parameter.end()) if parameter else None
            if end is None:
                ended = FUNCTION_END.match(self._text, at)
                self._after_parameter[at] = ended.end() if ended else None if parameter or self._is_cut(at) else at
            else:
                at = end
        self._after_parameter.update(dict.fromkeys(passed, self._after_parameter[at]))
        return self._after_parameter[at]

    def _is_cut(self, at: int) -> bool:
        """Whether the text ends within the tag at `at`."""
        rest = self._text[at : at + LONGEST_TAG].strip()
        return "</function>".startswith(rest) or ("<parameter=".startswith(rest[:11]) and ">" not in rest)

    def _end_of_parameter(self, start: int) -> int | None:
        found = None if start > self._last_end else PARAMETER_END.search(self._text, start)
        return found.end() if found else None

    @cached_property
    def _last_end(self) -> int:
        """Where the last parameter ends."""
        return max((found.start() for found in PARAMETER_END.finditer(self._text)), default=-1)


def _after_blanks(text: str, at: int) -> int:
    blanks = BLANKS.match(text, at)
    return blanks.end() if blanks else at

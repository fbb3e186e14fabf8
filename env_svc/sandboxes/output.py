"""Captured output of a run, up to a limit. Pure."""

MAX_ERROR_CHARS = 2_000
"""Maximum characters of a run's standard error: the last ones, where a traceback has its message."""


class OutputLimitExceeded(Exception):
    """The run has printed more than its limit and must be ended."""


class CapturedOutput:
    """Standard output and standard error of one run; the limit is on both together."""

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._output = bytearray()
        self._error = bytearray()
        self.is_too_much = False

    def add(self, data: bytes, *, is_error: bool = False) -> None:
        """Raises: OutputLimitExceeded, with what fits kept."""
        (self._error if is_error else self._output).extend(data[: self._left])
        if len(data) > self._left:
            self.is_too_much, self._left = True, 0
            raise OutputLimitExceeded
        self._left -= len(data)

    @property
    def output(self) -> str:
        return self._output.decode(errors="replace")

    @property
    def error(self) -> str:
        return self._error.decode(errors="replace")[-MAX_ERROR_CHARS:]

"""The standard output of a command."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def ends_with_its_reader() -> Generator[None]:
    """End a command silently if its output is closed, as by `| head`; otherwise flush the output at the end."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BaseException as error:
        if not _is_closed_pipe(error):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # the interpreter flushes it again at exit
        os.close(nowhere)


def _is_closed_pipe(error: BaseException) -> bool:
    """Whether the error is, or its group contains, a BrokenPipeError; commands that run tasks concurrently raise groups."""
    return isinstance(error, BrokenPipeError) or (isinstance(error, BaseExceptionGroup) and error.subgroup(BrokenPipeError) is not None)

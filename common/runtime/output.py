"""The standard output of a command."""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def ends_with_its_reader() -> Generator[None]:
    """A command whose output is closed, as by `| head`, ends without a word; what it prints last is flushed."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BaseException as error:
        if not _is_closed_pipe(error):
            raise
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())  # the interpreter flushes it once more
        os.close(nowhere)


def _is_closed_pipe(error: BaseException) -> bool:
    """Also in a group, as of a command that does several things concurrently."""
    return isinstance(error, BrokenPipeError) or (isinstance(error, BaseExceptionGroup) and error.subgroup(BrokenPipeError) is not None)

"""First program of a sandboxed interpreter: it reads the code from standard input, limits itself, and runs the code.

Run with `python -I -S -c`, so it imports nothing of the project, and is short, since every run pays for it. The code cannot undo the
limits, for it has no privileges. They are set here and not by the parent, because the process limit counts per user or user
namespace, and the sandbox's is not the parent's.
"""

import json
from dataclasses import dataclass

READY = b"\x06"
"""Written to standard output right before the code starts."""
MAX_FILE_BYTES = 16 * 2**20
MAX_OPEN_FILES = 64

PRELUDE = r"""
import os, resource, sys
limits, user, size = eval(sys.stdin.buffer.readline())
source = sys.stdin.buffer.read(size)
os.dup2(os.open('/dev/null', os.O_RDONLY), 0)
#first
if user:
    os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
for name, most in limits.items():
    resource.setrlimit(getattr(resource, name), (most, most))
#last
main = sys.modules['__main__'] = type(sys)('__main__')
main.__builtins__ = __builtins__
os.write(1, b'\x06')
try:
    exec(compile(source, 'main.py', 'exec', dont_inherit=True), main.__dict__)
except Exception as error:
    import linecache, traceback
    linecache.cache['main.py'] = len(source), None, source.decode(errors='replace').splitlines(True), 'main.py'
    error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
    traceback.print_exception(error, limit=-8)
    sys.exit(1)
"""


def prelude(definitions: str = "", first: str = "", last: str = "") -> str:
    """The program, with statements that run before it changes its user, and after its limits are set."""
    return definitions + PRELUDE.replace("#first", first).replace("#last", last)


@dataclass(frozen=True)
class Rlimits:
    """Kernel limits of each process of a run."""

    memory_bytes: int
    cpu_s: int
    processes: int | None = None
    """None where something else counts them."""

    def named(self) -> dict[str, int]:
        limits = {
            "RLIMIT_AS": self.memory_bytes,
            "RLIMIT_CPU": self.cpu_s,
            "RLIMIT_FSIZE": MAX_FILE_BYTES,
            "RLIMIT_NOFILE": MAX_OPEN_FILES,
            "RLIMIT_CORE": 0,
        }
        return limits if self.processes is None else {**limits, "RLIMIT_NPROC": self.processes}


def standard_input(source: str, limits: Rlimits, user: int = 0) -> bytes:
    """The prelude's input. `user`: the user id to change to, where it starts as root; 0: none."""
    code = source.encode(errors="replace")
    header = json.dumps([limits.named(), user, len(code)])
    return f"{header}\n".encode() + code

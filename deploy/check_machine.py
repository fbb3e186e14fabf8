"""Check of a machine for `make install`, which names all that is missing: `python deploy/check_machine.py .`

Uses nothing but the standard library, since nothing is installed yet, and runs in Python 3.6 and later.
"""

import importlib.util
import platform
import shutil
import sys
import sysconfig
from pathlib import Path

GIB = 2**30
DISK_GIB = 6
"""The environment takes 2.5, what pip keeps another 2.5, a demo's data less than one."""
MEMORY_GIB = 5
"""Free when the demo starts: sampler and trainer take 1.5 each, the rest 1."""
NEWEST, OLDEST = (3, 13), (3, 11)


def missing(folder: str) -> "list[str]":
    """Sentences, each with the way out; none when all is there."""
    return [sentence for sentence in (_system(), _python(), _venv(), _compiler(), _disk(folder), _memory()) if sentence]


def _system() -> "str | None":
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        return None
    return (
        "Linux on x86_64: NATS, PostgreSQL and vLLM are installed as wheels for it, and this is "
        f"{platform.system()} on {platform.machine()}; use a container or another machine"
    )


def _python() -> "str | None":
    if OLDEST <= sys.version_info[:2] <= NEWEST:
        return None
    found = ".".join(map(str, sys.version_info[:2]))
    return f"Python 3.11, 3.12 or 3.13, and this is {found}; name one: make PYTHON=/path/to/python3.11"


def _venv() -> "str | None":
    if all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
        return None
    return "Python's modules venv and ensurepip; on Debian: apt install python3-venv"


def _compiler() -> "str | None":
    """C compiler for pycosat: reasoning-gym needs it for its logic puzzles, and it has no wheel."""
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    absent = [str(name) for name, is_there in ((compiler, shutil.which(compiler)), (header, header.exists())) if not is_there]
    if not absent:
        return None
    return (
        "a C compiler with Python's headers (" + ", ".join(absent) + "), to build pycosat; on Debian: apt install gcc libc6-dev python3-dev"
    )


def _disk(folder: str) -> "str | None":
    free = shutil.disk_usage(folder).free
    if free >= DISK_GIB * GIB:
        return None
    return f"{DISK_GIB} GiB of disk, and {Path(folder).resolve()} has {free / GIB:.1f} free; make room, or clone to another disk"


def _memory() -> "str | None":
    try:
        found = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        free = int(found["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return None
    if free >= MEMORY_GIB * GIB:
        return None
    return f"{MEMORY_GIB} GiB of memory, and {free / GIB:.1f} are available; end what else runs, or use a larger machine"


if __name__ == "__main__":
    sentences = missing(sys.argv[1] if len(sys.argv) > 1 else ".")
    for sentence in sentences:
        sys.stderr.write("marlaas needs " + sentence + "\n")
    sys.exit(bool(sentences))

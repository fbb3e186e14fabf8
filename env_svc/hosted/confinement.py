"""Sandbox of a hosted process: visible files, and limits on resources. The door to `bwrap` for hosts.

The process sees its interpreter with packages, an empty /tmp that ends with it, and the paths in the operator's table. It has no network,
no other process, and no variable, descriptor or privilege of the service. Its user is a separate one if the service is root, otherwise
one of a user namespace. System calls that reach the kernel's less used parts are refused (`sandboxes/kernel.py`). Memory, processes and
CPU time are bounded for the whole sandbox if there are control groups, otherwise for each of its processes."""

import asyncio
import itertools
import json
import os
import shlex
import shutil
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from common.errors import Fatal
from common.messages import OWN_FAMILY
from env_svc.hosted.cgroups import Cgroups, GroupLimits, find_cgroups
from env_svc.hosted.config import HostedConfig
from env_svc.sandboxes.bubblewrap import KEPT_BY_ROOT, OF_NO_USER, parent_folders, visible
from env_svc.sandboxes.interpreter import FIRST_USER, python
from env_svc.sandboxes.kernel import DEVICES, LIBRARIES, PUBLIC, definitions, last_statements
from env_svc.settings import EnvSettings

MIB = 2**20
USERS = 1_000_000
"""Number of user ids for hosted processes, above those for runs of policies' code."""
RUNS = 100_000
"""Number of user ids, from FIRST_USER, that are left to runs of policies' code."""
SYSTEM = ("/etc/ld.so.cache", "/etc/alternatives", *PUBLIC)
"""Files that programs need besides libraries; they reveal nothing about the machine."""
NETWORK = ("/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf", "/etc/services", "/etc/ssl", "/etc/pki", "/etc/ca-certificates")
"""Files that a program needs to use the network."""
INHERITED_VARIABLES = ("LANG", "LC_ALL", "TZ")
TRIAL_TIMEOUT_S = 30.0
MAX_OPEN_FILES = 4096
MAX_LINKS = 40
"""Maximum symbolic links followed to an interpreter, as in Linux."""
PROBE = """
import importlib.util, json, sys
found = [importlib.util.find_spec(name) for name in ('env_svc', 'common')]
ours = [place for spec in found if spec for place in spec.submodule_search_locations]
print(json.dumps([sys.prefix, sys.base_prefix, sys.path, ours]))
"""
"""Program that prints an environment interpreter's import paths."""

LAUNCH = """
import json, os, resource, sys
user, limits, command = json.loads(sys.argv[1])
if user:
    os.setgroups([]); os.setresgid(user, user, user); os.setresuid(user, user, user)
for name, most in limits.items():
    resource.setrlimit(getattr(resource, name), (most, most))
try:
    with open('/proc/self/oom_score_adj', 'w') as file:
        file.write('1000')
except OSError:
    pass
LAST
os.execv(command[0], command)
"""
"""First program of the sandbox: it gives up its privileges and becomes the host."""


log = structlog.get_logger()


class NotConfined(Exception):
    """A process cannot be confined, with the reason."""


@dataclass(frozen=True)
class Command:
    """Command that starts one host."""

    argv: list[str]
    variables: dict[str, str]


class Confinement:
    """Makes the commands that start hosts in sandboxes."""

    def __init__(self, bwrap: str, cgroups: Cgroups | None) -> None:
        self._bwrap = bwrap
        self._cgroups = cgroups
        self._is_root = os.geteuid() == 0
        self._numbers: set[int] = set()
        """Numbers of the existing sandboxes. Each stands for a user id, so the number of a released sandbox is reused."""
        self._visible: dict[str, list[str]] = {}

    @property
    def meaning(self) -> str:
        bounded = "as a whole" if self._cgroups else "process by process, since the service may make no control groups here"
        return f"a sandbox (bwrap), its memory and processes bounded {bounded}"

    def name_of_next(self) -> str:
        """Reserve a name for a new sandbox, unique on this machine. The sandbox keeps the name for all its starts, until `release`."""
        number = next(one for one in itertools.count() if one not in self._numbers)
        self._numbers.add(number)
        return f"{os.getpid()}-{number}"

    async def command(self, name: str, hosted: HostedConfig, *arguments: str) -> Command:
        """Command that runs the interpreter of `hosted` with `arguments`, in the sandbox `name`. Raises: NotConfined."""
        interpreter = _found(hosted.python)
        seen = await self._seen_by(interpreter)
        user = (hosted.user or self._user_of(name)) if self._is_root else 0
        launch = LAUNCH.replace("LAST", last_statements("namespaces", [], ""))
        setup = json.dumps([user, _rlimits(hosted), [interpreter, *arguments]])
        argv = [
            self._bwrap,
            *_view(hosted, seen, is_root=self._is_root),
            interpreter,
            "-I",
            "-S",
            "-c",
            definitions("namespaces") + launch,
            setup,
        ]
        if self._cgroups is not None:
            limits = GroupLimits(hosted.memory_mib + hosted.scratch_mib, hosted.max_processes, hosted.cores)
            try:
                files = await asyncio.to_thread(self._cgroups.make, name, limits)
            except OSError as error:
                raise NotConfined(f"its control group cannot be made: {error}") from error
            enter = " && ".join(f"echo $$ > {shlex.quote(str(file))}" for file in files)
            argv = ["/bin/sh", "-c", f'{enter} && exec "$@"', "sh", *argv]
        inherited = {one: os.environ[one] for one in INHERITED_VARIABLES if one in os.environ}
        own = {"HOME": "/tmp", "TMPDIR": "/tmp", "USER": "environment", "PYTHONSAFEPATH": "1"}  # a user id without a name has no HOME
        path = {"PATH": f"{Path(interpreter).parent}:/usr/local/bin:/usr/bin:/bin"}
        return Command(argv, inherited | path | own | hosted.variables)

    async def release(self, name: str) -> None:
        """Forget a sandbox whose processes have ended."""
        if self._cgroups is not None:
            await asyncio.to_thread(self._cgroups.remove, name)
        self._numbers.discard(int(name.rpartition("-")[2]))

    async def try_out(self, interpreter: str | None = None) -> None:
        """Run a trivial program in a sandbox. `interpreter`: default: the service's own. Raises: NotConfined."""
        name = self.name_of_next()
        try:
            hosted = HostedConfig(python=interpreter or str(python()), environment="a:b")
            command = await self.command(name, hosted, "-I", "-c", "print(6 * 7)")
            printed = await _printed(command.argv, command.variables)
        finally:
            await self.release(name)
        if printed != "42\n":
            raise NotConfined(f"a trial printed {printed!r:.200}")

    async def _seen_by(self, interpreter: str) -> list[str]:
        """Paths that an interpreter needs. It reports them once, outside the sandbox, so only the operator may choose an interpreter."""
        if interpreter not in self._visible:
            printed = await _printed([interpreter, "-I", "-c", PROBE], {})
            try:
                prefix, base, path, ours = json.loads(printed)
            except ValueError:
                raise NotConfined(f"{interpreter} does not report its paths: {printed!r:.200}") from None
            self._visible[interpreter] = needed_paths(interpreter, prefix, base, path, ours)
        return self._visible[interpreter]

    def _user_of(self, name: str) -> int:
        process, _, number = name.partition("-")
        return FIRST_USER + RUNS + (int(process) * 256 + int(number)) % USERS


def _found(interpreter: str) -> str:
    """The absolute path of an interpreter. Symbolic links, as in a virtual environment, are not followed. Raises: NotConfined."""
    found = shutil.which(interpreter)
    if found is None:
        raise NotConfined(f"{interpreter} cannot be run: No such file or directory")
    return str(Path(found).absolute())


async def find_confinement(delegated: Path | None = None) -> Confinement:
    """This machine's sandbox, after a trial run. `delegated`: as in `find_cgroups`. Raises: NotConfined, with the reason in one line."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        raise NotConfined("there is no program bwrap: install the package bubblewrap")
    found = Confinement(bwrap, await asyncio.to_thread(find_cgroups, delegated))
    await found.try_out()
    return found


def _links(path: str) -> list[str]:
    """The path, and the targets of its chain of links: each must exist for the file to be found."""
    found = [Path(path)]
    while found[-1].is_symlink() and len(found) < MAX_LINKS:
        found.append(found[-1].parent / found[-1].readlink())
    return [str(one) for one in found]


def needed_paths(interpreter: str, prefix: str, base: str, path: list[str], ours: list[str]) -> list[str]:
    """Paths that an interpreter needs to run and to import as outside the sandbox.

    `prefix`, `base`, `path`: its `sys.prefix`, `sys.base_prefix` and `sys.path`. `ours`: where it finds marlaas's own packages; the folder
    that holds them may be a checkout, with keys and stores beside them, and is not shown as a whole.
    """
    wanted = [*_links(interpreter), str(Path(interpreter).resolve())]
    wanted += [folder for folder in (prefix, base) if folder != "/usr"]
    holders = {str(Path(place).parent) for place in ours}
    wanted += [place for place in path if place and place not in holders]
    wanted += ours
    kept: list[str] = []
    for place in sorted({os.path.normpath(one) for one in wanted}, key=len):
        covered = any(place == above or place.startswith(above + "/") for above in (*LIBRARIES, *kept))
        if not covered and place != "/" and Path(place).exists():
            kept.append(place)
    return kept


def _view(hosted: HostedConfig, seen: list[str], *, is_root: bool) -> list[str]:
    """Arguments of bwrap: namespaces, and the file system that the sandbox sees."""
    apart = ["--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"]
    if is_root:
        apart += KEPT_BY_ROOT
    else:
        apart += OF_NO_USER
    system = [one for one in SYSTEM if Path(one).exists()]
    if hosted.network:
        system += [one for one in NETWORK if Path(one).exists()]
    else:
        apart.append("--unshare-net")
    read, write = [str(one) for one in hosted.read], [str(one) for one in hosted.write]
    arguments = [*apart, "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    bound = (*LIBRARIES, *seen, *system, *read, *write, *DEVICES, *hosted.mounted.values())
    arguments += parent_folders(bound)
    scratch = ["--perms", "1777", "--size", str(hosted.scratch_mib * MIB), "--tmpfs"]
    arguments += [*scratch, "/tmp", *scratch, "/dev/shm"]  # before the bound paths, which may be below
    arguments += [*parent_folders(bound, below="/tmp/"), *visible((*seen, *system, *read), write)]
    arguments += [argument for path, place in hosted.mounted.items() for argument in ("--ro-bind", path, place)]
    return [*arguments, "--proc", "/proc", "--remount-ro", "/", "--chdir", "/tmp"]


def _rlimits(hosted: HostedConfig) -> dict[str, int]:
    return {
        "RLIMIT_AS": hosted.memory_mib * MIB,
        "RLIMIT_FSIZE": hosted.scratch_mib * MIB,
        "RLIMIT_NPROC": hosted.max_processes,
        "RLIMIT_NOFILE": MAX_OPEN_FILES,
        "RLIMIT_CORE": 0,
    }


async def _printed(argv: list[str], variables: dict[str, str]) -> str:
    """Output of a program. Raises: NotConfined if it cannot be run, fails, or takes too long."""
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=variables, process_group=0)
    except OSError as error:
        raise NotConfined(f"{argv[0]} cannot be run: {error.strerror}") from error
    try:
        async with asyncio.timeout(TRIAL_TIMEOUT_S):
            printed, errors = await process.communicate()
    except TimeoutError:
        raise NotConfined(f"{argv[0]} did not end within {TRIAL_TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode != 0:
        reason = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise NotConfined(reason[-300:] or f"{argv[0]} ended with exit status {process.returncode}")
    return printed.decode(errors="replace")


async def choose_confinement(settings: EnvSettings, hosted: Mapping[str, HostedConfig]) -> Confinement | None:
    """The sandbox for the environments `hosted`; None if they run with the service's rights. Raises: Fatal if a required one is
    missing, or an environment opts out of it.
    """
    if not hosted or settings.hosts_sandbox == "none":
        return None
    outside = [name for name, one in hosted.items() if not one.sandbox]
    if outside and settings.hosts_sandbox == "required":
        raise Fatal(f"MARLAAS_ENV_HOSTS_SANDBOX is 'required', and the table of '{outside[0]}' says sandbox = false: change one of the two")
    try:
        found = await find_confinement(settings.hosts_cgroup)
    except NotConfined as error:
        if settings.hosts_sandbox == "required":
            raise Fatal(f"MARLAAS_ENV_HOSTS_SANDBOX is 'required', and this machine has no sandbox for hosts: {error}") from None
        log.warning("hosts_not_confined", environments=sorted(hosted), reason=str(error))
        return None
    log.info("hosts_confined", meaning=found.meaning, outside=outside)
    return found


async def choose_own_confinement(settings: EnvSettings, found: Confinement | None) -> Confinement | None:
    """The sandbox for packages of tenants; None if this replica plays none. `found`: the sandbox of the operator's hosts; None: none.

    Raises: Fatal if a required sandbox is missing.
    """
    if settings.own == "none" or (settings.family_names and OWN_FAMILY not in settings.family_names):
        return None
    try:
        return found or await find_confinement(settings.hosts_cgroup)
    except NotConfined as error:
        if settings.own == "required":
            raise Fatal(f"MARLAAS_ENV_OWN is 'required', and this machine has no sandbox for packages of tenants: {error}") from None
        log.warning("own_not_served", reason=str(error))
        return None

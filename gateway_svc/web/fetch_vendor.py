"""Fetches third-party browser libraries into `vendor/`: `python -m gateway_svc.web.fetch_vendor`, with npm.

`vendor/packages.json` lists packages, versions, and the SHA-512 of each package and file. A file with another digest is not written. To
use another version, change it there; the error reports the digest that was found.
"""

import base64
import hashlib
import subprocess
import tarfile
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict

VENDOR = Path(__file__).parent / "vendor"


class VendoredFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    source: str
    """Path in the package."""
    integrity: str
    """SHA-512 as browsers and npm write it: `sha512-` and base64."""


class VendoredPackage(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str
    version: str
    licence: str
    integrity: str
    files: dict[str, VendoredFile]
    """File name in `vendor/` → its source and digest."""


class Vendored(BaseModel):
    model_config = ConfigDict(extra="forbid")

    packages: list[VendoredPackage]


def vendored() -> Vendored:
    return Vendored.model_validate_json((VENDOR / "packages.json").read_text())


def integrity_of(content: bytes) -> str:
    return "sha512-" + base64.b64encode(hashlib.sha512(content).digest()).decode()


def changed_files() -> list[str]:
    """Names of files in `vendor/` that are missing, changed, or not in the list."""
    files = {name: file for package in vendored().packages for name, file in package.files.items()}
    found = {path.name for path in VENDOR.iterdir()} - {"packages.json"}
    differing = {name for name in found & set(files) if integrity_of((VENDOR / name).read_bytes()) != files[name].integrity}
    return sorted(differing | (found ^ set(files)))


def fetch() -> None:
    """Fetch and check all packages. Raises: SystemExit if a digest differs; CalledProcessError if npm fails."""
    for package in vendored().packages:
        with tempfile.TemporaryDirectory() as folder:
            command = ["npm", "pack", "--silent", "--ignore-scripts", "--pack-destination", folder, f"{package.name}@{package.version}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            (archive,) = Path(folder).iterdir()
            _check(f"{package.name}@{package.version}", archive.read_bytes(), package.integrity)
            with tarfile.open(archive) as content:
                for name, file in package.files.items():
                    member = content.extractfile(file.source)
                    assert member is not None, file.source
                    data = member.read()
                    _check(f"{package.name}: {file.source}", data, file.integrity)
                    (VENDOR / name).write_bytes(data)


def _check(what: str, content: bytes, expected: str) -> None:
    if (found := integrity_of(content)) != expected:
        raise SystemExit(f"{what} has {found}, and {VENDOR.name}/packages.json says {expected}")


if __name__ == "__main__":
    fetch()

"""Reader of untrusted wheels: pure Python, plain files, bounded in every dimension. Pure.

A wheel is a zip archive. Sizes in its directory are checked before a file is unpacked, and unpacked bytes are counted. `zipfile` yields
at most the announced bytes of a file, and refuses a wrong checksum. Nothing is written or imported.
Source: PyPA specifications, "Binary distribution format" and "Recording installed projects".
"""

import base64
import configparser
import csv
import hashlib
import io
import re
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from email.message import Message
from email.parser import BytesParser
from pathlib import PurePosixPath

MIB = 2**20
GROUP = "marlaas.environments"
"""Group of entry points that name environments."""
TAG = re.compile(r"^py3[0-9]*(\.py[23][0-9]*)*-none-any$|^py2\.py3-none-any$")
COMPILED = (".so", ".pyd", ".dll", ".dylib", ".exe", ".a", ".o", ".pyc", ".pth")
"""Suffixes of files that a wheel may not contain: compiled code, and `.pth`, which runs code at each start of an interpreter."""
NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$")
VERSION = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.+!_-]{0,99}$")
REQUIREMENT = re.compile(r"^\s*(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?(?P<rest>.*)$", re.DOTALL)
ENTRY = re.compile(r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_.]*$")
OPTIONAL = re.compile(r";.*\bextra\s*==")
CHUNK_BYTES = 64 * 1024
MAX_HEADER_BYTES = 64 * 1024
"""Maximum size of the headers of METADATA and WHEEL, and of entry_points.txt. Parsers are slower than linear in a line's length."""
MAX_LINE_CHARS = 1_000
"""Maximum length of a requirement, and of a line of entry_points.txt."""
MAX_ENVIRONMENTS = 32
MAX_PART_BYTES = 255
"""Maximum length of a file or folder name in common file systems."""
HEADERS_END = re.compile(rb"\r?\n\r?\n")


@dataclass(frozen=True)
class WheelBounds:
    """Maximum sizes of one wheel."""

    packed_bytes: int = 8 * MIB
    files: int = 2_000
    file_bytes: int = 8 * MIB
    unpacked_bytes: int = 32 * MIB
    ratio: int = 100
    """Maximum ratio of unpacked to packed bytes."""
    name_chars: int = 200


BOUNDS = WheelBounds()


class WheelRefused(Exception):
    """A refused wheel, with the reason in one sentence."""


@dataclass(frozen=True)
class Wheel:
    """Parsed content of a wheel."""

    name: str
    """Name of the project, normalised: lower case, with `-`."""
    version: str
    digest: str
    """SHA-256 of its bytes, 64 hex digits."""
    files: dict[str, bytes]
    requires: tuple[str, ...]
    """Normalised names of required packages, without those of extras."""
    environments: dict[str, str]
    """Environments: name → `module:attribute`."""

    @property
    def versioned_name(self) -> str:
        return f"{self.name}@{self.digest[:12]}"

    @property
    def without_files(self) -> "Wheel":
        """Copy without the files."""
        return replace(self, files={})


def read_wheel(packed: bytes, bounds: WheelBounds = BOUNDS) -> Wheel:
    """The wheel in `packed`. Raises: WheelRefused."""
    if len(packed) > bounds.packed_bytes:
        raise WheelRefused(f"the wheel has {len(packed)} bytes, at most {bounds.packed_bytes} are taken")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = _checked(archive.infolist(), bounds)
            files = _unpacked(archive, entries, min(bounds.unpacked_bytes, bounds.ratio * len(packed)), bounds)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, UnicodeError, OSError, ValueError) as error:
        raise WheelRefused(f"this is no wheel that can be read: {error}") from None
    folder = _metadata_folder(files)
    metadata = _headers(files, f"{folder}/METADATA")
    name, version = str(metadata.get("Name", "")), str(metadata.get("Version", ""))
    if not NAME.match(name) or not VERSION.match(version):
        raise WheelRefused(f"its METADATA has the name '{name:.100}' and the version '{version:.100}', which are none")
    _check_kind(_headers(files, f"{folder}/WHEEL"), files)
    _check_record(files, folder)
    return Wheel(
        name=normalised(name),
        version=version,
        digest=hashlib.sha256(packed).hexdigest(),
        files=files,
        requires=_requires(map(str, metadata.get_all("Requires-Dist", []))),
        environments=_environments(files.get(f"{folder}/entry_points.txt", b"")),
    )


def missing_requirements(wheel: Wheel, installed: Iterable[str]) -> list[str]:
    """Required packages that the operator has not installed. Versions are checked only by the trial in the sandbox."""
    return sorted(set(wheel.requires) - {normalised(name) for name in installed})


def normalised(name: str) -> str:
    """The normalised name of a project. Source: PyPA specifications, "Names and normalization"."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _checked(entries: list[zipfile.ZipInfo], bounds: WheelBounds) -> list[zipfile.ZipInfo]:
    """Entries of an archive's files, after checks of its directory. Raises: WheelRefused."""
    if len(entries) > bounds.files:
        raise WheelRefused(f"the wheel has {len(entries)} files, at most {bounds.files} are taken")
    seen: set[str] = set()
    for entry in entries:
        _check_name(entry.orig_filename, bounds)
        kind = stat.S_IFMT(entry.external_attr >> 16)
        if kind not in (0, stat.S_IFREG, stat.S_IFDIR) or entry.flag_bits & 0x1:
            raise WheelRefused(f"'{entry.filename}' is no plain file: links, devices and encrypted files are not taken")
        if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise WheelRefused(f"'{entry.filename}' is packed by another method than deflate")
        if entry.file_size > bounds.file_bytes:
            raise WheelRefused(f"'{entry.filename}' has {entry.file_size} bytes, at most {bounds.file_bytes} are taken of one file")
        if entry.filename.rstrip("/").casefold() in seen:
            raise WheelRefused(f"'{entry.filename}' is in the wheel twice")
        seen.add(entry.filename.rstrip("/").casefold())
    files = [entry for entry in entries if not entry.is_dir()]
    names = {entry.filename for entry in files}
    for name in names:
        above = next((str(folder) for folder in PurePosixPath(name).parents if str(folder) in names), None)
        if above is not None:
            raise WheelRefused(f"'{above}' is a file and the folder of '{name}'")
    return files


def _check_name(name: str, bounds: WheelBounds) -> None:
    parts = name.removesuffix("/").split("/")
    is_plain = name.isprintable() and "\\" not in name and ":" not in name and not any(part in ("", ".", "..") for part in parts)
    if not is_plain or len(name) > bounds.name_chars or max(len(part.encode()) for part in parts) > MAX_PART_BYTES:
        raise WheelRefused(f"{name[:100]!r} is no name of a file in a wheel: absolute, upward, long or unprintable ones are not taken")


def _unpacked(archive: zipfile.ZipFile, entries: list[zipfile.ZipInfo], room: int, bounds: WheelBounds) -> dict[str, bytes]:
    """Contents by name, at most `room` bytes in total. Raises: WheelRefused; as `zipfile`."""
    files: dict[str, bytes] = {}
    for entry in entries:
        content = bytearray()
        with archive.open(entry) as packed:
            while chunk := packed.read(CHUNK_BYTES):
                content += chunk
                room -= len(chunk)
                if room < 0:
                    raise WheelRefused(
                        f"the wheel unpacks to more than {bounds.unpacked_bytes} bytes, or to more than {bounds.ratio} times its size"
                    )
        files[entry.filename] = bytes(content)
    return files


def _metadata_folder(files: Collection[str]) -> str:
    found = {name.partition("/")[0] for name in files if name.partition("/")[0].endswith(".dist-info")}
    if len(found) != 1:
        raise WheelRefused(f"a wheel has one folder *.dist-info, this has {len(found)}")
    return found.pop()


def _headers(files: dict[str, bytes], name: str) -> Message:
    if name not in files:
        raise WheelRefused(f"the wheel has no {name}")
    end = HEADERS_END.search(files[name], 0, MAX_HEADER_BYTES)
    headers = files[name][: end.start()] if end else files[name]
    if len(headers) > MAX_HEADER_BYTES:
        raise WheelRefused(f"{name} has more than {MAX_HEADER_BYTES} bytes of headers")
    return BytesParser().parsebytes(headers, headersonly=True)


def _check_kind(headers: Message, files: Collection[str]) -> None:
    """Raises: WheelRefused unless the wheel has only Python source, for any platform."""
    tags = [str(tag).strip() for tag in headers.get_all("Tag", [])]
    if str(headers.get("Root-Is-Purelib", "")).strip().lower() != "true" or not tags or not all(map(TAG.match, tags)):
        raise WheelRefused(f"only wheels of pure Python 3 are taken (py3-none-any), this is for {', '.join(tags)[:100] or 'nothing'}")
    for name in files:
        if name.lower().endswith(COMPILED):
            raise WheelRefused(f"'{name}' is no source: compiled files and .pth files are not taken")
        if name.partition("/")[0].endswith(".data"):
            raise WheelRefused(f"'{name}' would be installed outside of the package: folders *.data are not taken")


def _check_record(files: dict[str, bytes], folder: str) -> None:
    """Raises: WheelRefused unless RECORD lists every file with its digest."""
    record = f"{folder}/RECORD"
    if record not in files:
        raise WheelRefused(f"the wheel has no {record}")
    try:
        rows = list(csv.reader(io.StringIO(files[record].decode(), newline="")))
    except (UnicodeError, csv.Error) as error:
        raise WheelRefused(f"its RECORD cannot be read: {error}") from None
    digests = {row[0]: row[1] for row in rows if len(row) >= 2}
    for name, content in files.items():
        wanted = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        if name != record and digests.get(name) != wanted:
            raise WheelRefused(f"its RECORD has no SHA-256 of '{name}', or another one")


def _requires(requirements: Iterable[str]) -> tuple[str, ...]:
    found: set[str] = set()
    for requirement in requirements:
        if len(requirement) > MAX_LINE_CHARS:
            raise WheelRefused(f"it needs '{requirement[:100]}…', at most {MAX_LINE_CHARS} characters are taken of a requirement")
        parts = REQUIREMENT.match(requirement)
        if parts is None or parts["rest"].lstrip().startswith("@"):
            raise WheelRefused(f"it needs '{requirement[:100]}', which is no name of a package: addresses are not taken")
        if not OPTIONAL.search(parts["rest"]):
            found.add(normalised(parts["name"]))
    return tuple(sorted(found))


class _EntryPoints(configparser.ConfigParser):
    """Parser of entry points that keeps the case of names."""

    def optionxform(self, optionstr: str) -> str:
        return optionstr


def _environments(entry_points: bytes) -> dict[str, str]:
    if len(entry_points) > MAX_HEADER_BYTES or any(len(line) > MAX_LINE_CHARS for line in entry_points.splitlines()):
        raise WheelRefused(f"its entry_points.txt has more than {MAX_HEADER_BYTES} bytes, or a line of more than {MAX_LINE_CHARS}")
    parser = _EntryPoints(delimiters=("=",), interpolation=None, default_section="")
    try:
        parser.read_string(entry_points.decode())
    except (UnicodeError, configparser.Error) as error:
        raise WheelRefused(f"its entry_points.txt cannot be read: {str(error).splitlines()[0][:200]}") from None
    found = {name: value.partition("[")[0].strip() for name, value in parser.items(GROUP)} if parser.has_section(GROUP) else {}
    if not found:
        raise WheelRefused(f"it has no entry point of the group {GROUP}, by which a task could name its environment")
    if len(found) > MAX_ENVIRONMENTS:
        raise WheelRefused(f"it has {len(found)} environments, at most {MAX_ENVIRONMENTS} are taken")
    for name, value in found.items():
        if not NAME.match(name) or not ENTRY.match(value):
            raise WheelRefused(f"its entry point '{name[:100]} = {value[:100]}' is none: name = module:Class")
    return found

"""Wheels from strangers: what is read, what is refused, and that no bound is passed on the way."""

import hashlib
import random
import shutil
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from env_svc.packages.wheel import BOUNDS, MIB, WheelBounds, WheelRefused, missing_requirements, read_wheel
from marlaas.packages import write_package
from tests.env.packages import making
from tests.env.packages.making import zipped

INFO = "my_games-1.0.dist-info"
WHEEL = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
METADATA = "Metadata-Version: 2.1\nName: My.Games\nVersion: 1.0\nRequires-Dist: Pydantic>=2; python_version > '3'\n"
ENTRIES = "[marlaas.environments]\nHigher_Lower = my_games.play:HigherLower\n"
FILES = {
    "my_games/__init__.py": b"",
    "my_games/play.py": b"class HigherLower: ...\n",
    f"{INFO}/WHEEL": WHEEL.encode(),
    f"{INFO}/METADATA": METADATA.encode(),
    f"{INFO}/entry_points.txt": ENTRIES.encode(),
}


def recorded(files: dict[str, bytes]) -> dict[str, bytes]:
    """The files with their RECORD."""
    return making.recorded(files, INFO)


def wheel(**changed: bytes | None) -> bytes:
    """A wheel with some files changed, added or left out. Names: `INFO` stands for its metadata folder."""
    files = FILES | {name.replace("INFO", INFO): content for name, content in changed.items() if content is not None}
    for name, content in changed.items():
        if content is None:
            del files[name.replace("INFO", INFO)]
    return zipped(recorded(files))


def test_wheel_is_read() -> None:
    packed = wheel()
    found = read_wheel(packed)
    assert (found.name, found.version, found.requires) == ("my-games", "1.0", ("pydantic",))
    assert found.environments == {"Higher_Lower": "my_games.play:HigherLower"}
    assert found.versioned_name == f"my-games@{hashlib.sha256(packed).hexdigest()[:12]}"
    assert found.files["my_games/play.py"] == FILES["my_games/play.py"]
    assert missing_requirements(found, ["PyDantic"]) == [] and missing_requirements(found, ["numpy"]) == ["pydantic"]


def test_requirements_of_extras_are_left_out() -> None:
    more = METADATA + "Provides-Extra: plots\nRequires-Dist: matplotlib>=3; extra == 'plots'\nRequires-Dist: a_b[c] (>1)\n"
    assert read_wheel(wheel(**{"INFO/METADATA": more.encode()})).requires == ("a-b", "pydantic")


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"INFO/WHEEL": WHEEL.replace("py3-none-any", "cp311-cp311-linux_x86_64").encode()}, "only wheels of pure Python 3"),
        ({"INFO/WHEEL": WHEEL.replace("true", "false").encode()}, "only wheels of pure Python 3"),
        ({"INFO/WHEEL": (WHEEL + "Tag: cp311-abi3-any\n").encode()}, "only wheels of pure Python 3"),
        ({"INFO/WHEEL": b""}, "only wheels of pure Python 3 are taken (py3-none-any), this is for nothing"),
        ({"INFO/WHEEL": None}, "has no my_games-1.0.dist-info/WHEEL"),
        ({"INFO/METADATA": None}, "has no my_games-1.0.dist-info/METADATA"),
        ({"INFO/METADATA": b"Name: ../x\nVersion: 1"}, "which are none"),
        ({"INFO/METADATA": (METADATA + "Requires-Dist: x @ https://evil.example/x.whl\n").encode()}, "addresses are not taken"),
        ({"INFO/entry_points.txt": None}, "no entry point of the group marlaas.environments"),
        ({"INFO/entry_points.txt": b"[marlaas.environments]\nx = os.system\n"}, "name = module:Class"),
        ({"INFO/entry_points.txt": b"[marlaas.environments\n"}, "cannot be read"),
        ({"INFO/entry_points.txt": b"[marlaas.environments]\na" + b" " * 1000}, "a line of more than 1000"),
        (
            {"INFO/entry_points.txt": ("[marlaas.environments]\n" + "".join(f"e{n} = a:b\n" for n in range(33))).encode()},
            "at most 32 are taken",
        ),
        ({"INFO/METADATA": METADATA.encode() + b"A: b\n" * 20_000}, "more than 65536 bytes of headers"),
        ({"INFO/METADATA": (METADATA + f"Requires-Dist: a{';' * 1000}\n").encode()}, "at most 1000 characters are taken of a requirement"),
        ({"é" * 128: b""}, "is no name of a file in a wheel"),
        ({"my_games/fast.so": b"\x7fELF"}, "'my_games/fast.so' is no source"),
        ({"start.pth": b"import os"}, "'start.pth' is no source"),
        ({"my_games-1.0.data/scripts/run": b"#!python"}, "would be installed outside"),
        ({"other-1.0.dist-info/METADATA": b""}, "one folder *.dist-info, this has 2"),
    ],
)
def test_wheel_of_another_kind_is_refused(changed: dict[str, bytes | None], problem: str) -> None:
    with pytest.raises(WheelRefused) as caught:
        read_wheel(wheel(**changed))
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["/etc/cron.d/x", "../x", "my_games/../../x", "my_games//x", "./x", "C:/x", "a\\..\\x", "x\ny", "x" * 201])
def test_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(WheelRefused, match="is no name of a file in a wheel"):
        read_wheel(wheel(**{name: b"x"}))


def test_name_with_a_zero_is_refused() -> None:
    cut = wheel(**{"my_games/odd~.py": b""}).replace(b"odd~.py", b"odd\0.py")
    with pytest.raises(WheelRefused, match="is no name of a file in a wheel"):
        read_wheel(cut)


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFBLK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_are_refused(kind: int) -> None:
    with pytest.raises(WheelRefused, match="is no plain file"):
        read_wheel(zipped(recorded(FILES), mode=kind | 0o777))


def test_file_that_is_there_twice_is_refused() -> None:
    with pytest.raises(WheelRefused, match=r"'MY_GAMES/play.py' is in the wheel twice"):
        read_wheel(wheel(**{"MY_GAMES/play.py": b""}))
    with pytest.raises(WheelRefused, match=r"'my_games/play\.py' is a file and the folder"):
        read_wheel(wheel(**{"my_games/play.py/x": b""}))


def test_file_that_is_not_the_recorded_one_is_refused() -> None:
    for files in (recorded(FILES) | {"my_games/play.py": b"other"}, recorded(FILES) | {"more.py": b""}):
        with pytest.raises(WheelRefused, match="its RECORD has no SHA-256"):
            read_wheel(zipped(files))
    with pytest.raises(WheelRefused, match=r"has no my_games-1\.0\.dist-info/RECORD"):
        read_wheel(zipped(FILES))


def test_each_bound_is_a_bound() -> None:
    packed = wheel()
    size, files = len(packed), len(recorded(FILES))
    largest = max(map(len, recorded(FILES).values()))
    total = sum(map(len, recorded(FILES).values()))
    for at, below in (
        (WheelBounds(packed_bytes=size), WheelBounds(packed_bytes=size - 1)),
        (WheelBounds(files=files), WheelBounds(files=files - 1)),
        (WheelBounds(file_bytes=largest), WheelBounds(file_bytes=largest - 1)),
        (WheelBounds(unpacked_bytes=total), WheelBounds(unpacked_bytes=total - 1)),
    ):
        assert read_wheel(packed, at).name == "my-games"
        with pytest.raises(WheelRefused):
            read_wheel(packed, below)


def test_archive_that_unpacks_to_a_hundred_times_its_size_is_refused_in_bounded_memory() -> None:
    bomb = wheel(**{f"zeros{number}.py": bytes(8 * MIB) for number in range(6)})
    assert len(bomb) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(WheelRefused, match="more than 100 times its size"):
            read_wheel(bomb)
        assert tracemalloc.get_traced_memory()[1] < 4 * BOUNDS.unpacked_bytes
    finally:
        tracemalloc.stop()


def test_file_that_holds_more_than_it_announces_is_refused() -> None:
    packed = wheel(**{"zeros.py": bytes(98_765)})
    announced = (98_765).to_bytes(4, "little")
    assert packed.count(announced) == 2  # before the file, and in the directory
    for less in (10, 98_764):
        with pytest.raises(WheelRefused):
            read_wheel(packed.replace(announced, less.to_bytes(4, "little")))


def test_any_bytes_are_read_or_refused_in_a_sentence() -> None:
    packed, chance = wheel(), random.Random(7)
    for _ in range(500):
        damaged = bytearray(packed)
        for _ in range(chance.randint(1, 8)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        given = bytes(damaged[: chance.choice([len(damaged), chance.randrange(len(damaged))])])
        try:
            read_wheel(given)
        except WheelRefused as refused:
            assert "\n" not in str(refused)


@pytest.mark.parametrize("name", ["my_env", "letter_count"])
def test_wheel_of_the_scaffold_or_the_example_is_read(name: str, tmp_path: Path) -> None:
    if name == "my_env":
        write_package(name, tmp_path / name)
    else:
        shutil.copytree(making.EXAMPLE, tmp_path / name)  # a build writes beside its sources
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", str(tmp_path)]
    ran = subprocess.run([*build, str(tmp_path / name)], capture_output=True, text=True)
    if ran.returncode != 0:
        pytest.skip(f"no wheel can be built here: {ran.stderr.strip()[-200:]}")
    (built,) = tmp_path.glob("*.whl")
    found = read_wheel(built.read_bytes())
    assert (found.name, list(found.environments)) == (name.replace("_", "-"), [name])

"""The wheel of a package that is uploaded: a file, or built from a project's folder."""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from common.client_api.errors import ClientError
from common.messages import MAX_PACKAGE_BYTES

BUILD = ("-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
NOT_SOURCES = (".git", ".venv", "build", "dist", "*.egg-info", "__pycache__")
BUILD_TIMEOUT_S = 300.0


def read_wheel(path: Path) -> bytes:
    """Bytes of the wheel at `path`; a folder with a pyproject.toml is built with what is installed here, without a network.

    Raises: ClientError, with what is wrong.
    """
    if path.is_dir():
        if not (path / "pyproject.toml").is_file():
            raise ClientError(f"{path} has no pyproject.toml; give a project's folder, or a wheel")
        return _built(path)
    if path.suffix != ".whl":
        raise ClientError(f"{path} is neither a folder nor a wheel (.whl)")
    try:
        if path.stat().st_size > MAX_PACKAGE_BYTES:
            raise ClientError(f"{path} has {path.stat().st_size} bytes; a package has at most {MAX_PACKAGE_BYTES}")
        return path.read_bytes()
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror}") from None


def _built(project: Path) -> bytes:
    with tempfile.TemporaryDirectory(prefix="marlaas-wheel-") as folder:
        copy = Path(folder) / "project"  # a build writes into the folder that it builds
        command = [sys.executable, *BUILD, "--wheel-dir", folder, str(copy)]
        try:
            shutil.copytree(project, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_SOURCES))
            done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise ClientError(f"{project} was not built within {BUILD_TIMEOUT_S:.0f} s") from None
        except (OSError, shutil.Error) as error:
            raise ClientError(f"{project} cannot be copied: {error}") from None
        wheels = sorted(Path(folder).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            lines = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
            raise ClientError(f"{project} cannot be built: {lines[-1] if lines else 'no wheel was written'}")
        return read_wheel(wheels[0])

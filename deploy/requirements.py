"""What one service's image installs, from pyproject.toml: `python deploy/requirements.py scheduler`.

The versions are those of requirements/cpu.txt, which every image uses as constraints, so that no pin is written twice.
`vllm` stands for what vLLM imports besides what the services ask for: a part of cpu.txt, with its pins.
"""

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
VLLM_PART = "# ---- what vLLM imports beyond those"
VLLM_SHARED = ("pillow", "psutil", "six")
"""Also vLLM's, but listed in the first part of cpu.txt, and asked for by nothing else in its image."""


def requirements(part: str) -> list[str]:
    """Requirement lines of the service `part`, or of `vllm`."""
    if part == "vllm":
        return vllm_requirements((ROOT / "requirements" / "cpu.txt").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return [*project["dependencies"], *project["optional-dependencies"][part]]


def vllm_requirements(pins: str) -> list[str]:
    first, marker, vllm = pins.partition(VLLM_PART)
    if not marker:
        sys.exit(f"requirements/cpu.txt has no line '{VLLM_PART}…'")
    shared = [line for line in first.splitlines() if line.partition("==")[0] in VLLM_SHARED]
    return [*shared, *(line for line in vllm.splitlines()[1:] if line and not line.startswith("#"))]


if __name__ == "__main__":
    sys.stdout.write("\n".join([*requirements(sys.argv[1]), ""]))

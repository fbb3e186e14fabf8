"""Wall clocks that jump, one process at a time: a preloaded library adds an offset from a file.

nats-server is linked statically, so its clock cannot jump; it is every service's reference (`Clock.now_s`).
"""

import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).parent / "clock.c"


@dataclass(frozen=True)
class Clocks:
    """The files of a stack's processes, and the library that reads them."""

    folder: Path

    @classmethod
    def build(cls, folder: Path) -> "Clocks | None":
        """None where there is no C compiler."""
        compiler = shutil.which("cc")
        if compiler is None:
            return None
        folder.mkdir(parents=True)
        folder.chmod(0o755)
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(folder / "clock.so"), str(SOURCE)], check=True)
        return cls(folder)

    def environment(self, process: str) -> dict[str, str]:
        """Environment variables of `process`, whose clock is right until `jump`."""
        self.jump(process, 0)
        return {"LD_PRELOAD": str(self.folder / "clock.so"), "CHAOS_CLOCK": str(self.folder / process)}

    def jump(self, process: str, ahead_s: int) -> None:
        """Set the clock of `process` and its children that many seconds ahead."""
        path = self.folder / process
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.write(struct.pack("=q", ahead_s))

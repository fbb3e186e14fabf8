"""`python -m tests.chaos.launch FILE PACKAGE`: become the service, with the crash point that FILE names, once.

The file is removed first, so that the service's next start is an ordinary one.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    armed, package = Path(sys.argv[1]), sys.argv[2]
    if armed.exists():
        os.environ["MARLAAS_CRASH_POINT"] = armed.read_text()
        armed.unlink()
    os.execv(sys.executable, [sys.executable, "-m", package])

"""Lines of logs that cannot be written."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
import structlog
from common.runtime.logs import configure_logs
configure_logs("x", "y", "info")
for _ in range(1_000):
    structlog.get_logger().info("step", text="x" * 100)
open(sys.argv[1], "w").write("worked")
"""


def test_service_works_on_where_its_log_is_on_a_full_disk(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as output:
        subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path / "done")], stdout=output)
    assert (tmp_path / "done").read_text() == "worked"

"""Routes of OpenAI's API: roles that may, and a body."""

from typing import Any

from tests.support.graders import CHECK

ALL = {"reader", "member", "owner", "admin"}
SPENDING = ALL - {"reader"}
HELLO = [{"role": "user", "content": "x"}]
JOB: dict[str, Any] = {"training_file": "env:toy", "method": {"type": "reinforcement"}, "marlaas": {"steps": 0, "tenant": "acme"}}
ROWS: dict[tuple[str, str], tuple[set[str], dict[str, Any] | None]] = {
    ("GET", "/v1/models"): (ALL, None),
    ("GET", "/v1/models/slow-1@1"): (ALL, None),
    ("POST", "/v1/chat/completions"): (SPENDING, {"model": "slow-1@1", "messages": HELLO}),
    ("POST", "/v1/completions"): (SPENDING, {"model": "slow-1@1", "prompt": "x"}),
    ("POST", "/v1/responses"): (SPENDING, {"model": "slow-1@1", "input": "x"}),
    ("POST", "/v1/fine_tuning/jobs"): (SPENDING, {"model": "slow-1@1"} | JOB),
    ("GET", "/v1/fine_tuning/jobs"): (ALL, None),
    ("GET", "/v1/fine_tuning/jobs/slow-1"): (ALL, None),
    ("GET", "/v1/fine_tuning/jobs/slow-1/events"): (ALL, None),
    ("GET", "/v1/fine_tuning/jobs/slow-1/checkpoints"): (ALL, None),
    ("POST", "/v1/fine_tuning/alpha/graders/validate"): (ALL, {"grader": CHECK}),
    ("GET", "/v1/files"): (ALL, None),
    ("GET", "/v1/files/slow-1"): (ALL, None),
    ("GET", "/v1/files/slow-1/content"): (ALL, None),
    ("DELETE", "/v1/files/slow-1"): (SPENDING, None),
    ("POST", "/v1/fine_tuning/jobs/slow-1/pause"): (SPENDING, None),
    ("POST", "/v1/fine_tuning/jobs/slow-1/resume"): (SPENDING, None),
    ("POST", "/v1/fine_tuning/jobs/slow-1/cancel"): (SPENDING, None),
}
"""Route → roles of the tenant that may, and a body. The last row ends the task of the others. `test_every_route_has_a_row` reads it too."""
VALUES = {"{job}": "slow-1", "{file}": "slow-1", "{model}": "slow-1@1"}

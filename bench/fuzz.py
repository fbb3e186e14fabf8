"""Requests made from the OpenAPI document of the HTTP door: `python -m bench.fuzz`. Writes bench/results/fuzz.json.

    python -m bench.fuzz [--cases 20000] [--examples 25] [--seed 0] [--minutes 60] [--no-coverage]
                         [--keys owner,foreign] [--add]

A stack with keys, its engine and a trained task. schemathesis makes half of the requests as the task's owner, with its names, and
half as the owner of another tenant, with all of its checks: generated requests, the edges of every schema, and sequences of operations
in which an answer gives the next request's names. What contradicts the document, or is 5xx, is listed with a curl line. The exit status
is 1 when there is anything. `--minutes` ends it earlier, and the result says how many cases there were. `--add` adds to the result there
is, so that many short runs, each with a seed of its own, make a long one.
"""

import argparse
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from bench.harness import report
from bench.harness.load.fuzzing import EXAMPLES, added, fuzz
from bench.harness.report import CODE
from bench.harness.services import BenchError, local_stack, run_or_exit
from bench.harness.tenants import owner

NAME = "fuzz"
TENANTS = {"owner": "acme", "foreign": "globex"}
"""Whose requests → their tenant; the task is the first one's."""
TASK = {"pool": "tiny", "name": "sums", "steps": 1, "environment": {"name": "calculator"}, "sampling": {"max_tokens": 16}}
TRAINED_S = 300.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000, help="of both keys together")
    parser.add_argument("--examples", type=int, default=EXAMPLES, help="generated requests of an operation in a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60.0, help="after which it ends, of all keys together")
    parser.add_argument("--no-coverage", action="store_true", help="leave out the edges of every schema")
    parser.add_argument("--keys", type=lambda text: text.split(","), default=list(TENANTS), help="whose requests")
    parser.add_argument("--add", action="store_true", help="add to the result there is")
    run_or_exit(NAME, partial(measure, parser.parse_args()))


def measure(options: argparse.Namespace) -> None:
    """Raises: BenchError."""
    machine, found = report.machine(), dict[str, Any]()
    with tempfile.TemporaryDirectory(prefix="marlaas-keys-") as folder, local_stack(keys=Path(folder) / "keys") as stack:
        if stack.gateway is None:
            raise BenchError("the stack has no gateway")
        url = stack.gateway.url
        owners = {who: owner(tenant, stack, Path(folder) / "keys") for who, tenant in TENANTS.items()}
        task, share = _trained(url, owners["owner"]), len(options.keys)
        known = {"tenant": TENANTS["owner"], "task": task, "job": task, "version": "1", "model": f"{task}@1"}
        for who in options.keys:
            limits = {"cases": options.cases // share, "seed": options.seed, "examples": options.examples}
            one = fuzz(url, owners[who], known, **limits, max_s=60 * options.minutes / share, coverage=not options.no_coverage)
            found[who] = one.as_json()
            print(f"{who}: {one.cases} cases, {one.server_errors} answers of 5xx, {len(one.failures)} kinds of failures", flush=True)
    before = report.read(NAME) if options.add else {}
    runs = [*before.get("runs", ()), {"commit": report.commit(), "seed": options.seed, **{who: one["cases"] for who, one in found.items()}}]
    sums = {who: one for who in TENANTS if (one := added(before.get(who), found.get(who)))}
    report.write(NAME, {"machine": machine, "options": vars(options), "runs": runs, **sums}, (*CODE, "gateway_svc"))
    if any(one["failures"] or one["server_errors"] for one in found.values()):
        sys.exit(1)


def _trained(url: str, key: str) -> str:
    """Id of a task that has finished."""
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60) as door:
        deadline = time.monotonic() + TRAINED_S
        task = ""
        while time.monotonic() < deadline:
            if not task:  # until the gateway has been told of the key
                answer = door.post("/v1/tasks", json=TASK)
                task = answer.json().get("task", "") if answer.status_code in (201, 202) else ""
            elif door.get(f"/v1/tasks/{task}").json().get("state") == "finished":
                return task
            time.sleep(0.5)
    raise BenchError("the first task does not finish")


if __name__ == "__main__":
    main()

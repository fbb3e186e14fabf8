"""deploy/shared-accelerator: containers of the same executors, with the same settings, as a one-machine stack of the same pools."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from common.pools import read_accelerators, read_pools
from marlaas.stack.executors import processes
from marlaas.stack.placement import Machine

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "deploy" / "shared-accelerator"
FOLDER = "/var/lib/marlaas/accelerators"


def services() -> dict[str, Any]:
    return yaml.safe_load((EXAMPLE / "compose.yml").read_text())["services"]


def test_each_executor_is_a_service_with_the_settings_of_a_stack() -> None:
    pools = read_pools(EXAMPLE / "pools.toml")
    accelerators = read_accelerators(EXAMPLE / "pools.toml", pools)
    wanted = [one.env for one in processes(Path("/data"), pools, accelerators, Machine((0, 1), ()))]
    found = [{name: value for name, value in one["environment"].items() if name != "TMPDIR"} for one in services().values()]
    for env in wanted:
        env["MARLAAS_ACCELERATORS_DIR"] = FOLDER
    assert sorted(map(sorted_items, found)) == sorted(map(sorted_items, wanted))


def sorted_items(env: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(env.items())


def test_all_share_one_volume_of_locks_which_the_image_lets_its_user_write() -> None:
    assert all(one["volumes"] == [f"accelerators:{FOLDER}"] for one in services().values())
    (made,) = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if "install -d -o marlaas" in line]
    assert FOLDER in made.split()


def test_services_that_are_added_extend_those_of_the_deployment() -> None:
    deployed = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name, service in services().items():
        assert name in deployed or service["extends"] == {"file": "docker-compose.yml", "service": name.partition("-")[0]}
        assert name.partition("-")[0] in deployed

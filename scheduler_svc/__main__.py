"""`python -m scheduler_svc`"""

from common.runtime.service import Running, run_service
from scheduler_svc.settings import SchedulerSettings


async def main(running: Running[SchedulerSettings]) -> None:
    from common.pools import read_accelerators, read_pools
    from scheduler_svc.base.database import Database
    from scheduler_svc.service import Scheduler
    from scheduler_svc.upkeep.outbox import wait_for_one_history

    pools = read_pools(running.settings.pools_file)
    accelerators = read_accelerators(running.settings.pools_file, pools)
    async with await Database.connect(running.settings.database_url) as database:
        running.health.detail = "PostgreSQL and NATS disagree, or do not answer; see the log"
        await wait_for_one_history(database, running.bus)
        running.health.set_ready(f"pools: {', '.join(sorted(pools))}")
        await Scheduler(running.settings, running.bus, database, pools, accelerators).run()


if __name__ == "__main__":
    run_service(SchedulerSettings, main)

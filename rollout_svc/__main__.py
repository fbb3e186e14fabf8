"""The sampler's process: `python -m rollout_svc`."""

from common.pools import chosen_pool
from common.runtime.service import Running, run_service
from rollout_svc.settings import RolloutSettings


async def main(running: Running[RolloutSettings]) -> None:
    import asyncio

    from common.blobs import Blobs
    from common.bus import Slots
    from common.leases import PoolClocks, leased_executor
    from common.messages import ReplicaReport
    from common.pools.model_files import name_in_file, with_model_files
    from common.runtime.process import leave
    from common.runtime.service import report_replica
    from common.streams import rollout_samples
    from common.task_states import TaskStates
    from rollout_svc.accelerators.capacity import Capacity
    from rollout_svc.accelerators.wiring import MOVE_S, place_of, reading_of, sampler_of
    from rollout_svc.adapters import Adapters
    from rollout_svc.engine.config import EngineSettings, Tolerance
    from rollout_svc.engine.engine import Engine
    from rollout_svc.engine.process import import_vllm
    from rollout_svc.service import Rollout
    from rollout_svc.serving.aliases import KeptAliases
    from rollout_svc.serving.wiring import serving_of
    from rollout_svc.text.chat import Chat

    settings, bus = running.settings, running.bus
    pool = chosen_pool(settings.pool, settings.pools_file, "MARLAAS_ROLLOUT_POOL")
    running.health.detail = f"starting the engine for {pool.model}"
    named, pool = name_in_file(pool, settings.pools_file), await asyncio.to_thread(with_model_files, settings.pool, pool)
    place = place_of(settings)
    locks = place.locks(settings.accelerators_dir) if place is not None else None
    takes_turns, inherited = locks is not None, locks.descriptors if locks is not None else ()
    if place is not None:
        leave(*place.cores_to_leave(settings.cores))
    engine_settings = EngineSettings.of(
        pool, device=settings.device, cores=settings.cores, sleeps=takes_turns, locks=inherited, named=named
    )
    if takes_turns:  # its engine is started by its first wake, which should not wait for imports
        await asyncio.to_thread(import_vllm, engine_settings)
    engine = Engine.closed(engine_settings) if takes_turns else await Engine.start(engine_settings)
    try:
        chat = await asyncio.to_thread(Chat.load, pool.model)
        if not takes_turns:
            await engine.warm_up()
        said = settings.canary_tolerance
        adapters = Adapters(
            engine,
            Blobs(bus),
            settings.data_dir.absolute() / "adapters" / settings.replica,
            keep=settings.keep_versions,
            keep_s=settings.keep_s,
            tolerance=Tolerance(max=said, mean=said) if said else engine.canary_tolerance,
        )
        tasks, clocks, slots = TaskStates(), PoolClocks(bus), Slots(pool.sequences)
        await tasks.read(bus)
        if pool.samplers_on:
            await clocks.read()
        thoughts = pool.serving.thoughts if pool.serving else None
        rollout = Rollout(engine, chat, adapters, tasks, slots, clocks.now_s, thoughts)
        serving = serving_of(pool, engine, chat, adapters, bus, settings.replica)
        capacity = Capacity(engine)

        def show(is_awake: bool) -> None:
            sampling = f"sampling for pool '{settings.pool}', {capacity.kv_tokens} tokens of KV cache"
            running.health.detail = sampling if is_awake else f"waits for its accelerator '{settings.accelerator}'"

        executor, queues = None, place.queues(bus, slots, move_s=lambda: MOVE_S) if place is not None else None
        if place is not None and locks is not None:
            sampler = await sampler_of(place, engine, adapters, rollout, slots, serving)
            reads = reading_of(settings.pool, queues, serves=serving is not None)
            executor = leased_executor(bus, place, sampler, locks, reads, data_dir=settings.data_dir, show=show)

        def report() -> ReplicaReport:
            return ReplicaReport(
                replica=settings.replica,
                service="rollout",
                pool=settings.pool,
                sequences=pool.sequences,
                kv_tokens=capacity.kv_tokens,
                invariant=engine.is_invariant,
                template_variables=sorted(chat.template_variables),
                takes_answers=chat.takes_answers,
                busy={"sequences": rollout.sequences, "adapters": adapters.held, "serving": serving.requests if serving else 0}
                | (executor.busy if executor else {}),
                serves=serving is not None,
            )

        async with asyncio.TaskGroup() as runners:
            runners.create_task(engine.wait_fatal())
            runners.create_task(adapters.run())
            runners.create_task(rollout.follow_tasks(bus))
            if pool.samplers_on:
                runners.create_task(clocks.follow())
            is_wanted = (queues.is_at_home,) if queues is not None else ()  # a task at home elsewhere is loaded with its first request
            runners.create_task(rollout.follow_versions(bus, settings.pool, *is_wanted))
            runners.create_task(report_replica(bus, report))
            if serving is not None:
                runners.create_task(serving.run(bus, settings.pool, settings.replica))
                runners.create_task(KeptAliases(adapters, settings.pool).run(bus))
            if executor is not None:
                runners.create_task(executor.run())
            show(not takes_turns)
            running.health.set_ready(running.health.detail)
            if queues is not None:
                await queues.consume(rollout.handle, max_pull=settings.pull)
            else:
                await bus.consume(rollout_samples(settings.pool), rollout.handle, slots, max_pull=settings.pull)
    finally:
        engine.close()


if __name__ == "__main__":
    run_service(RolloutSettings, main)

"""An engine's state moves between tiers: `device`, `host`, `disk`, `none`.

A park freezes all requests, those in the middle too; they stay in the engine's process, and compute their KV cache again after the wake.
So a park to `none` ends at `disk` while any request is inside, unless the last wake found a wrong state: then they are handed back, since
a new engine alone is sure to be right. On a GPU the moves are vLLM's sleep levels; on a CPU `engine/cpu/worker.py` takes the same calls.

After a wake the base model must give fixed tokens the log-probabilities that it gave when it was first awake, and each adapter those of its
trainer. Until all agree, every request stays frozen. Where one differs, the weights are dropped; the caller then parks to `none`, so that
the next wake starts from the files. From `device` there is no check: nothing was moved, and no adapter is loaded or evicted meanwhile
(`Adapters.stop`).
"""

import asyncio
import errno
from collections.abc import Awaitable, Callable

import structlog

from common.accelerators import NoMemory, StateMismatch, Tier
from common.errors import Fatal
from common.pools.model_files import why_gone
from rollout_svc.accelerators.sizes import Sizes, expected_sizes
from rollout_svc.engine.engine import Engine
from rollout_svc.engine.process import one_line
from rollout_svc.engine.start import AS_WITHOUT_MEMORY

CANARY_TOKENS = 96
CANARY_STEP = 7919
"""Distance of two tokens of the canary, modulo the vocabulary: a prime, so that they are from all of it."""
NO_MEMORY = (
    *("can't allocate memory", "cannot allocate memory", "out of memory", "bad_alloc", "memoryerror"),
    "free memory on device",  # vLLM's, where other processes have more of a GPU than its share leaves them
    *(AS_WITHOUT_MEMORY, f"[errno {errno.ENOMEM}]", f"[errno {errno.ENOSPC}]"),
)
"""Parts of messages of PyTorch, CUDA, vLLM and the kernel where there is no memory. A failed start quotes the engine's process."""

Recheck = Callable[[bool], Awaitable[None]]
"""Checks the adapters that the engine held; its argument says whether they must be loaded again."""

log = structlog.get_logger()


class Parking:
    """Moves of one engine; one call at a time."""

    def __init__(self, engine: Engine, gpu_bytes: int | None = None) -> None:
        """`engine` may be closed: its first start is a wake. `gpu_bytes`: memory of its GPU; None on a CPU."""
        self._engine = engine
        self._process = engine.process
        self._tier = Tier.DEVICE if self._process.is_open else Tier.NONE
        self._ids: list[int] = []
        self._canary: list[float] = []
        """Log-probabilities of `_ids`; empty until the engine was first awake."""
        self._sizes = self._expected = expected_sizes(engine.settings, gpu_bytes)
        self._is_wrong = False
        """Whether a wake has failed with WrongState, and none has succeeded since. Weights that are read again may not help: the model's
        buffers are in no file."""

    @property
    def tier(self) -> Tier:
        return self._tier

    @property
    def device_bytes(self) -> int:
        """Bytes of weights, adapter slots and KV cache; an estimate until the engine was first awake. On a GPU vLLM's start demands all of
        the GPU's share, however little of it the weights and the cache will be."""
        return max(self._sizes.total, self._expected.total) if self._starts_on_gpu else self._sizes.total

    @property
    def host_bytes(self) -> int:
        """Bytes in host memory in the tier `host`: all but the KV cache."""
        return self._sizes.weights

    @property
    def _starts_on_gpu(self) -> bool:
        return self._tier is Tier.NONE and not self._engine.is_cpu

    async def learn(self) -> None:
        """Take the canary of an engine that is awake, and its bytes."""
        if self._canary:
            return
        weights, cache, vocabulary = await self._process.worker("marlaas_sizes")
        self._sizes = Sizes(weights, cache)
        length = min(CANARY_TOKENS, self._engine.settings.context_tokens - 1)
        self._ids = [number * CANARY_STEP % vocabulary for number in range(1, length + 1)]
        self._canary = await self._engine.prompt_logprobs(self._ids, None)

    # ------------------------------------------------------------------------------------------------------------ park

    async def park(self, tier: Tier) -> None:
        """Freeze all requests, and move the state to `tier`, or the next that it can be in; never to a nearer one.

        After a wake with WrongState, a park to `none` hands them back instead: the engine is closed.
        """
        self._process.proceed()
        try:
            await self._park(tier)
        finally:
            await self._halt()

    async def _halt(self) -> None:
        """A parked engine on a CPU is stopped: its idle threads would use 1 % of a core, and nothing makes it compute."""
        if self._process.is_open and self._engine.is_cpu and not self._engine.gate.is_open:
            await asyncio.shield(self._process.halt())

    async def _park(self, tier: Tier) -> None:
        engine = self._engine
        if engine.gate.is_open:
            await self.learn()
            engine.gate.close()
            engine.work.stop()
            await self._process.pause(keep_cache=True)
        if self._is_wrong and tier.depth >= Tier.NONE.depth:
            await engine.hand_back()
        if (tier := self._reachable(tier)).depth <= self._tier.depth:
            return
        if tier is Tier.NONE:
            await self._process.shut()
        elif self._tier is Tier.DEVICE:
            await self._process.pause(keep_cache=False)
            tier = await self._sleep(tier)
        else:
            await self._process.worker("sleep", level=2)
        self._tier = tier

    def _reachable(self, tier: Tier) -> Tier:
        if tier.depth >= Tier.NONE.depth:
            tier = Tier.DISK if self._engine.work.inside else Tier.NONE
        if tier is Tier.DISK and self._tier is Tier.HOST and not self._engine.is_cpu:
            return Tier.HOST  # vLLM's sleep on a GPU changes its level only by way of the device
        return tier

    async def _sleep(self, tier: Tier) -> Tier:
        """The tier that was reached: `disk` where the host has no memory for the weights."""
        if tier is Tier.HOST:
            try:
                await self._process.worker("sleep", level=1)
                return Tier.HOST
            except Exception as error:
                if not self._engine.is_cpu or not _is_no_memory(error):
                    raise
                log.warning("weights_dropped", reason=one_line(error))
        await self._process.worker("sleep", level=2)
        return Tier.DISK

    # ------------------------------------------------------------------------------------------------------------ wake

    async def wake(self, recheck: Recheck) -> None:
        """State to the device, checked; then frozen requests continue, and waiting ones enter the engine.

        Raises: NoMemory, with the state where it was; WrongState when a canary differs or the state cannot be read, with the state at
        `disk` or `none`; Fatal when the engine is dead. Requests stay frozen.
        """
        engine, source = self._engine, self._tier
        if engine.gate.is_open:
            return
        if source.depth >= Tier.DISK.depth and (reason := why_gone(engine.settings.model, engine.settings.named or engine.settings.model)):
            raise StateMismatch(reason)
        self._process.proceed()
        if source is not Tier.DEVICE:
            self._process.is_waking = True
            try:
                await self._to_device(source)
                self._tier = Tier.DEVICE
                await self._check_base()
                await recheck(source is not Tier.HOST)
            except BaseException as error:
                failure = self._failure(error, source)
                self._is_wrong = self._is_wrong or isinstance(failure, StateMismatch)
                await asyncio.shield(self._back(Tier.DISK if source is Tier.HOST and isinstance(failure, StateMismatch) else source))
                await self._halt()
                raise failure from error
            finally:
                self._process.is_waking = False
            self._is_wrong = False
        await self._process.resume()
        engine.work.go()
        engine.gate.open()

    async def _to_device(self, source: Tier) -> None:
        engine = self._engine
        if source is Tier.HOST:
            await self._process.worker("wake_up")
        elif source is Tier.DISK:
            await self._process.worker("wake_up", tags=["weights"])
            await self._process.worker("reload_weights")
            await self._process.worker("wake_up", tags=["kv_cache"])
        else:
            await self._process.open()
            if not self._canary:
                await engine.warm_up()

    async def _check_base(self) -> None:
        if not self._canary:
            await self.learn()
            return
        got = await self._engine.prompt_logprobs(self._ids, None)
        if (excess := self._engine.canary_tolerance.excess(got, self._canary)) is not None:
            raise StateMismatch(
                f"the base model {self._engine.settings.model} computes other log-probabilities than before it was parked: they {excess}; "
                "are its files those that the pool started with?"
            )

    def _failure(self, error: BaseException, source: Tier) -> BaseException:
        """What a wake's error means to its caller."""
        if isinstance(error, (NoMemory, StateMismatch)) or not isinstance(error, Exception):
            return error
        if _is_no_memory(error):
            return NoMemory(f"no memory for {self._engine.settings.model}: {one_line(error)}")
        if isinstance(error, Fatal) and source is not Tier.NONE:
            return error
        return StateMismatch(f"{self._engine.settings.model} did not wake from tier '{source}': {one_line(error)}")

    async def _back(self, tier: Tier) -> None:
        """Free what a failed wake has put on the device. Raises: Fatal on a GPU where it is not known what that was."""
        engine = self._engine
        if self._process.is_dead:
            await self._process.shut()
        if not self._process.is_open:
            self._tier = Tier.NONE
        elif tier is Tier.NONE:
            await self._process.pause(keep_cache=True)
            await self._process.shut()
            self._tier = Tier.NONE
        elif engine.is_cpu or self._tier is Tier.DEVICE:
            await self._process.pause(keep_cache=False)  # also ends when the last check has
            self._tier = await self._sleep(tier)
        else:
            raise Fatal(f"the engine for {engine.settings.model} is half awake, and vLLM cannot put that to sleep")


def _is_no_memory(error: BaseException) -> bool:
    text = f"{type(error).__name__} {error}".lower()
    return isinstance(error, MemoryError) or any(part in text for part in NO_MEMORY)

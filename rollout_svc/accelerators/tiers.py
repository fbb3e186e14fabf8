"""Moves an engine's state between tiers: `device`, `host`, `disk`, `none`.

A park freezes all requests, running ones included. They stay in the engine's process and recompute their KV cache after the wake.
So a park to `none` stops at `disk` while any request is inside. The exception is a wake that found wrong state: requests are then handed
back, because only a new engine is sure to be right. On a GPU the moves are vLLM's sleep levels; on a CPU `engine/cpu/worker.py` implements
the same calls.

After a wake the base model must give fixed tokens the log-probabilities of its first wake, and each adapter those of its trainer.
Until all agree, every request stays frozen. If one differs, the weights are dropped and the caller parks to `none`, so that the next wake
starts from the files. A wake from `device` is not checked: nothing moved, and no adapter is loaded or evicted while parked
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
"""Step between canary token ids, modulo the vocabulary size: a prime, so that the ids cover the whole vocabulary."""
NO_MEMORY = (
    *("can't allocate memory", "cannot allocate memory", "out of memory", "bad_alloc", "memoryerror"),
    "free memory on device",  # vLLM's, if other processes leave less GPU memory free than its share
    *(AS_WITHOUT_MEMORY, f"[errno {errno.ENOMEM}]", f"[errno {errno.ENOSPC}]"),
)
"""Substrings of out-of-memory errors of PyTorch, CUDA, vLLM and the kernel. The error of a failed start quotes the engine's process."""

Recheck = Callable[[bool], Awaitable[None]]
"""Checks the adapters that the engine held; its argument says whether they must be loaded again."""

log = structlog.get_logger()


class Parking:
    """Parks and wakes one engine; calls must not overlap."""

    def __init__(self, engine: Engine, gpu_bytes: int | None = None) -> None:
        """`engine` may be closed: the first wake then starts it. `gpu_bytes`: memory of its GPU; None on a CPU."""
        self._engine = engine
        self._process = engine.process
        self._tier = Tier.DEVICE if self._process.is_open else Tier.NONE
        self._ids: list[int] = []
        self._canary: list[float] = []
        """Log-probabilities of `_ids`; empty until the engine's first wake."""
        self._sizes = self._expected = expected_sizes(engine.settings, gpu_bytes)
        self._is_wrong = False
        """Whether a wake failed with WrongState and none has succeeded since. Reading the weights again may not help: the model's buffers
        are in no file.
        """

    @property
    def tier(self) -> Tier:
        return self._tier

    @property
    def device_bytes(self) -> int:
        """Bytes of weights, adapter slots and KV cache; estimated until the first wake. On a GPU at least the configured memory share: vLLM
        demands it at start, and its activations, workspaces and graphs fill what weights and cache leave of it.
        """
        return self._sizes.total if self._engine.is_cpu else max(self._sizes.total, self._expected.total)

    @property
    def host_bytes(self) -> int:
        """Bytes of host memory used in tier `host`: everything except the KV cache."""
        return self._sizes.weights

    async def learn(self) -> None:
        """Record the canary log-probabilities and the sizes of an awake engine."""
        if self._canary:
            return
        weights, cache, vocabulary = await self._process.worker("marlaas_sizes")
        self._sizes = Sizes(weights, cache)
        length = min(CANARY_TOKENS, self._engine.settings.context_tokens - 1)
        self._ids = [number * CANARY_STEP % vocabulary for number in range(1, length + 1)]
        self._canary = await self._engine.prompt_logprobs(self._ids, None)

    # ------------------------------------------------------------------------------------------------------------ park

    async def park(self, tier: Tier) -> None:
        """Freeze all requests and move the state to `tier`, or to the next farther tier that is possible; never to a nearer one.

        After a wake with WrongState, a park to `none` hands requests back and closes the engine.
        """
        self._process.proceed()
        try:
            await self._park(tier)
        finally:
            await self._halt()

    async def _halt(self) -> None:
        """Stop a parked CPU engine's processes: idle threads would use 1 % of a core."""
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
            await self._process.sleep(2, self.host_bytes)
        self._tier = tier

    def _reachable(self, tier: Tier) -> Tier:
        if tier.depth >= Tier.NONE.depth:
            tier = Tier.DISK if self._engine.work.inside else Tier.NONE
        if tier is Tier.DISK and self._tier is Tier.HOST and not self._engine.is_cpu:
            return Tier.HOST  # on a GPU vLLM can change its sleep level only through the device
        return tier

    async def _sleep(self, tier: Tier) -> Tier:
        """Put the engine to sleep; return the tier reached: `disk` if host memory cannot hold the weights."""
        if tier is Tier.HOST:
            try:
                await self._process.sleep(1, self.host_bytes)
                return Tier.HOST
            except Exception as error:
                if not self._engine.is_cpu or not _is_no_memory(error):
                    raise
                log.warning("weights_dropped", reason=one_line(error))
        await self._process.sleep(2, self.host_bytes)
        return Tier.DISK

    # ------------------------------------------------------------------------------------------------------------ wake

    async def wake(self, recheck: Recheck) -> None:
        """Move the state to the device and check it; then resume frozen requests and admit waiting ones.

        Raises: NoMemory, with the state left in its tier; WrongState when a canary differs or the state cannot be read, with the state at
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
        engine, size_bytes = self._engine, self.host_bytes
        if source is Tier.HOST:
            await self._process.move("wake_up", size_bytes)
        elif source is Tier.DISK:
            await self._process.move("wake_up", size_bytes, tags=["weights"])
            await self._process.move("reload_weights", size_bytes)
            await self._process.move("wake_up", size_bytes, tags=["kv_cache"])
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
        """The exception that a wake raises for `error`."""
        if isinstance(error, (NoMemory, StateMismatch)) or not isinstance(error, Exception):
            return error
        if _is_no_memory(error):
            return NoMemory(f"no memory for {self._engine.settings.model}: {one_line(error)}")
        if isinstance(error, Fatal) and source is not Tier.NONE:
            return error
        return StateMismatch(f"{self._engine.settings.model} did not wake from tier '{source}': {one_line(error)}")

    async def _back(self, tier: Tier) -> None:
        """Free what a failed wake put on the device. A half-awake engine on a GPU returns to the tier that it came from, `tier` or not.

        Raises: Fatal if vLLM cannot put that to sleep.
        """
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
            await self._process.pause(keep_cache=False)  # also ends when the last check has ended
            self._tier = await self._sleep(tier)
        else:
            try:
                await self._process.sleep(1 if self._tier is Tier.HOST else 2, self.host_bytes, "marlaas_sleep_again")
            except Exception as error:
                cause = one_line(error)
                raise Fatal(f"the engine for {engine.settings.model} is half awake, and vLLM cannot put that to sleep: {cause}") from error


def _is_no_memory(error: BaseException) -> bool:
    text = f"{type(error).__name__} {error}".lower()
    return isinstance(error, MemoryError) or any(part in text for part in NO_MEMORY)

"""One vLLM process as the service sees it: opened, watched, frozen, stopped and closed. It answers calls between two engine steps."""

import asyncio
import gc
import os
import signal
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import structlog

from common.errors import Fatal
from rollout_svc.engine.config import EngineSettings
from rollout_svc.engine.start import noted, processes_of, runs_on_cpu, shut_down, start_llm

HEALTH_PERIOD_S = 1.0
PROBE_PERIOD_S = 10.0
"""Seconds between liveness probes of the engine."""
PATIENCE_S = 120.0
CPU_PATIENCE_S = 300.0
"""Maximum seconds until the engine answers a call: on a CPU one step with long prompts may take a minute or more."""
SLOWEST_BYTES_PER_S = 20e6
"""Slowest rate, in bytes per second, at which weights that are moved or read from files still count as moving."""
ASLEEP_BESIDE_OTHERS = "Memory usage increased after sleeping"
"""vLLM's assertion at the end of a successful sleep, which fails if another process allocates device memory meanwhile."""
MAX_SAID_CHARS = 500

T = TypeVar("T")
log = structlog.get_logger()


class EngineProcess:
    """A vLLM process, or none while closed. Belongs to the event loop that opened it."""

    def __init__(self, settings: EngineSettings, *, cpu: bool | None = None) -> None:
        """Starts closed. `cpu`: whether vLLM computes on a CPU; None: decided by `settings` and this machine."""
        self.settings = settings
        self.is_cpu = runs_on_cpu(settings) if cpu is None else cpu
        self.llm: Any = None  # AsyncLLM, None while closed; vLLM is imported late and its types are loose
        self.patience_s = CPU_PATIENCE_S if self.is_cpu else PATIENCE_S
        """Maximum seconds to an answer before the engine counts as stuck."""
        self.is_waking = False
        """Whether a wake is in progress; the wake itself then reports a dead engine."""
        self._thread: ThreadPoolExecutor | None = None
        self._is_stuck = self._is_halted = False
        self._asking = asyncio.Lock()

    async def open(self) -> None:
        """Start vLLM in a thread, so that the event loop is not blocked. Raises: Fatal, with the cause in one line."""
        started = time.monotonic()
        # The engine's process ends with the thread that started it, so that thread is kept.
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        try:
            handed_over = await asyncio.get_running_loop().run_in_executor(thread, start_llm, self.settings)
        except BaseException as error:
            thread.shutdown(wait=False)
            if isinstance(error, Fatal) or not isinstance(error, Exception):
                raise
            raise Fatal(f"inference engine for {self.settings.model} did not start: {one_line(error)}") from error
        # Popped: the thread keeps a reference to its result, which would keep the engine alive after `close`.
        self.llm, self._thread = handed_over.pop(), thread
        log.info("engine_started", model=self.settings.model, seconds=round(time.monotonic() - started, 1), kv_tokens=self.kv_tokens)

    async def shut(self) -> None:
        """Close vLLM so that `open` may start it again. No request may be inside."""
        async with self._asking:  # a call in progress would never be answered
            llm, thread, self.llm, self._thread = self.llm, self._thread, None, None
            llm.output_handler.cancel()  # otherwise it would report the end of the process as a failure
            await asyncio.to_thread(shut_down, llm)
            del llm
            assert thread is not None
            thread.shutdown(wait=False)
            gc.collect()

    def close(self) -> None:
        """Close vLLM permanently."""
        if self.llm is None:
            return
        self.llm.shutdown(timeout=0)
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        # vLLM's own clean-up reruns when the object is freed, and fails if that is while the interpreter ends.
        self.llm = None
        gc.collect()
        gc.freeze()  # otherwise the interpreter would collect all objects of vLLM's imports once more at exit, for seconds

    @property
    def is_open(self) -> bool:
        return self.llm is not None

    @property
    def is_dead(self) -> bool:
        return self.llm is not None and self.llm.errored

    @property
    def kv_tokens(self) -> int:
        """KV cache capacity in tokens; 0 while closed."""
        if self.llm is None:
            return 0
        cache = self.llm.vllm_config.cache_config
        return int(cache.num_gpu_blocks) * int(cache.block_size)

    def progress(self) -> dict[str, int]:
        """Number of tokens sampled so far for each running request, by request id."""
        if self.llm is None:
            return {}
        states = self.llm.output_processor.request_states.values()
        return {state.external_req_id: state.detokenizer.num_output_tokens() for state in states}

    # ---------------------------------------------------------------------------------------------------------- health

    async def wait_fatal(self) -> None:
        """Watch the engine; never returns. Raises: Fatal when its process died or has not answered for `patience_s`."""
        probing = asyncio.create_task(self._probe())
        try:
            while not probing.done():
                if self.is_dead and not self.is_waking:
                    raise self.death()
                await asyncio.wait({probing}, timeout=HEALTH_PERIOD_S)
            await probing
        finally:
            probing.cancel()

    async def _probe(self) -> None:
        while True:
            async with self._asking:
                try:
                    if self.llm is not None and not self._is_halted and not self.is_waking:
                        await self.answer(self.llm.list_loras)
                except Fatal:
                    raise
                except Exception as error:
                    raise Fatal(f"the inference engine could not list its adapters: {one_line(error)}") from None
            await asyncio.sleep(PROBE_PERIOD_S)

    async def answer(self, question: Callable[[], Awaitable[T]], more_s: float = 0.0) -> T:
        """Await one call to the engine; its exceptions are passed on.

        Raises: Fatal if the engine is dead, or did not answer within `patience_s + more_s`; every later call then raises it too.
        """
        if self._is_stuck:
            raise self._silence()
        answer = asyncio.ensure_future(question())
        try:
            await asyncio.wait({answer}, timeout=self.patience_s + more_s)
            if not answer.done():
                self._is_stuck = True
                raise self._silence(more_s)
            if self.is_dead:
                raise self.death()
            return answer.result()
        finally:
            answer.cancel()

    def death(self) -> Fatal:
        """Fatal error for a dead process, with the exception that ended it if the process wrote one."""
        said = " ".join(noted(self.llm.marlaas_failure).split())[:MAX_SAID_CHARS]
        return Fatal(f"the inference engine's process died{f': {said}' if said else '; its last lines on stderr say why'}")

    def _silence(self, more_s: float = 0.0) -> Fatal:
        waited = f"has not answered for {self.patience_s + more_s:g} s"
        return Fatal(f"the inference engine's process lives, but {waited}; it may hang in its device or driver")

    # --------------------------------------------------------------------------------------------------------- parking

    async def pause(self, *, keep_cache: bool) -> None:
        """Freeze all requests, running ones included, until `resume`; checks still run."""
        await self.answer(lambda: self.llm.pause_generation(mode="keep", clear_cache=not keep_cache))

    async def resume(self) -> None:
        await self.answer(lambda: self.llm.resume_generation())

    async def halt(self) -> None:
        """Stop the engine's processes with SIGSTOP: they use no CPU until `proceed`, even if calls arrive."""
        async with self._asking:
            self._is_halted = True
            self._signal(signal.SIGSTOP)

    def proceed(self) -> None:
        if self._is_halted:
            self._is_halted = False
            self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        for process in processes_of(self.llm):
            os.kill(process.pid, number)

    async def worker(self, method: str, **arguments: Any) -> Any:
        """Call `method` of vLLM's workers; return the first worker's result. Raises: the worker's exception, as vLLM wraps it."""
        return await self._called(method, arguments)

    async def move(self, method: str, size_bytes: int, **arguments: Any) -> None:
        """Call a method of vLLM's workers that moves `size_bytes` between device, host memory and files, however slow these are; no probe
        waits behind it. Raises: as `worker`.
        """
        async with self._asking:
            await self._called(method, arguments, more_s=size_bytes / SLOWEST_BYTES_PER_S)

    async def sleep(self, level: int, size_bytes: int, method: str = "sleep") -> None:
        """Put the workers to sleep at vLLM's `level`; `size_bytes`: as in `move`. Raises: as `worker`."""
        try:
            await self.move(method, size_bytes, level=level)
        except Exception as error:
            if ASLEEP_BESIDE_OTHERS not in str(error):
                raise

    async def _called(self, method: str, arguments: dict[str, Any], more_s: float = 0.0) -> Any:
        return (await self.answer(lambda: self.llm.collective_rpc(method, kwargs=arguments), more_s))[0]


def one_line(error: BaseException) -> str:
    """First informative line of an error message: vLLM wraps causes in validation errors of several lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    informative = [line for line in lines if not line.endswith(("validation error for ModelConfig", "validation errors for ModelConfig"))]
    return (informative or lines or [type(error).__name__])[0][:500]

"""One vLLM process as the service sees it: opened, watched, frozen, stopped and closed. Questions to it are answered between two steps."""

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
"""Maximum time to an answer: on a CPU one step with long prompts may take a minute or more."""
MAX_SAID_CHARS = 500

T = TypeVar("T")
log = structlog.get_logger()


class EngineProcess:
    """vLLM, or none while it is closed. Belongs to the event loop that opened it."""

    def __init__(self, settings: EngineSettings, *, cpu: bool | None = None) -> None:
        """Closed. `cpu`: whether it computes on one; None: as `settings` and this machine decide."""
        self.settings = settings
        self.is_cpu = runs_on_cpu(settings) if cpu is None else cpu
        self.llm: Any = None  # AsyncLLM, None while closed; vLLM is imported late and its types are loose
        self.patience_s = CPU_PATIENCE_S if self.is_cpu else PATIENCE_S
        """Maximum time to an answer before the engine counts as stuck."""
        self.is_waking = False
        """Whether a wake is in progress, which reports by itself that the engine is dead."""
        self._thread: ThreadPoolExecutor | None = None
        self._is_stuck = self._is_halted = False
        self._asking = asyncio.Lock()

    async def open(self) -> None:
        """Start vLLM. Its start blocks a thread of its own, not the event loop. Raises: Fatal, with the cause in one line."""
        started = time.monotonic()
        # The engine's process ends with the thread that made it, so the engine keeps the thread.
        thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        try:
            handed_over = await asyncio.get_running_loop().run_in_executor(thread, start_llm, self.settings)
        except BaseException as error:
            thread.shutdown(wait=False)
            if isinstance(error, Fatal) or not isinstance(error, Exception):
                raise
            raise Fatal(f"inference engine for {self.settings.model} did not start: {one_line(error)}") from error
        # Popped: the thread remembers what it returned, and would keep the engine alive after `close`.
        self.llm, self._thread = handed_over.pop(), thread
        log.info("engine_started", model=self.settings.model, seconds=round(time.monotonic() - started, 1), kv_tokens=self.kv_tokens)

    async def shut(self) -> None:
        """Close vLLM, for `open`. No request may be inside."""
        async with self._asking:  # a question to it would stay without an answer
            llm, thread, self.llm, self._thread = self.llm, self._thread, None, None
            llm.output_handler.cancel()  # it would take the end of the process for a failure
            await asyncio.to_thread(shut_down, llm)
            del llm
            assert thread is not None
            thread.shutdown(wait=False)
            gc.collect()

    def close(self) -> None:
        """Close vLLM for ever."""
        if self.llm is None:
            return
        self.llm.shutdown(timeout=0)
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        # vLLM's own clean-up reruns when the object is freed, and fails if that is while the interpreter ends.
        self.llm = None
        gc.collect()
        gc.freeze()  # all that vLLM imported would be walked once more at exit, for seconds

    @property
    def is_open(self) -> bool:
        return self.llm is not None

    @property
    def is_dead(self) -> bool:
        return self.llm is not None and self.llm.errored

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds; 0 while closed."""
        if self.llm is None:
            return 0
        cache = self.llm.vllm_config.cache_config
        return int(cache.num_gpu_blocks) * int(cache.block_size)

    def progress(self) -> dict[str, int]:
        """Sampled tokens so far of requests that are inside, by id."""
        if self.llm is None:
            return {}
        states = self.llm.output_processor.request_states.values()
        return {state.external_req_id: state.detokenizer.num_output_tokens() for state in states}

    # ---------------------------------------------------------------------------------------------------------- health

    async def wait_fatal(self) -> None:
        """Never returns. Raises: Fatal once the engine's process is dead, or lives and answers nothing for `patience_s`."""
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

    async def answer(self, question: Callable[[], Awaitable[T]]) -> T:
        """The engine's errors go through. Raises: Fatal when it is dead, or does not answer within `patience_s`, and ever after."""
        if self._is_stuck:
            raise self._silence()
        answer = asyncio.ensure_future(question())
        try:
            await asyncio.wait({answer}, timeout=self.patience_s)
            if not answer.done():
                self._is_stuck = True
                raise self._silence()
            if self.is_dead:
                raise self.death()
            return answer.result()
        finally:
            answer.cancel()

    def death(self) -> Fatal:
        """With the exception that ended the engine's process, where it wrote one."""
        said = " ".join(noted(self.llm.marlaas_failure).split())[:MAX_SAID_CHARS]
        return Fatal(f"the inference engine's process died{f': {said}' if said else '; its last lines on stderr say why'}")

    def _silence(self) -> Fatal:
        waited = f"has not answered for {self.patience_s:g} s"
        return Fatal(f"the inference engine's process lives, but {waited}; it may hang in its device or driver")

    # --------------------------------------------------------------------------------------------------------- parking

    async def pause(self, *, keep_cache: bool) -> None:
        """Freeze all requests, those in the middle too, until `resume`; checks still run."""
        await self.answer(lambda: self.llm.pause_generation(mode="keep", clear_cache=not keep_cache))

    async def resume(self) -> None:
        await self.answer(lambda: self.llm.resume_generation())

    async def halt(self) -> None:
        """Stop the engine's processes: until `proceed` they use no processor, whatever is asked of them."""
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
        """Result of this method of vLLM's worker, of the first where there are several. Raises: what it raises, as vLLM's exception."""
        return (await self.answer(lambda: self.llm.collective_rpc(method, kwargs=arguments)))[0]


def one_line(error: BaseException) -> str:
    """The message's first informative line: vLLM wraps causes in validation errors of several lines."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    informative = [line for line in lines if not line.endswith(("validation error for ModelConfig", "validation errors for ModelConfig"))]
    return (informative or lines or [type(error).__name__])[0][:500]

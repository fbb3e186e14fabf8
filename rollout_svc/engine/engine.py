"""The door to vLLM: token ids in, token ids and their log-probabilities out, under any of many adapters concurrently.

What it promises beyond vLLM's own interface:

- The log-probabilities are those of the distribution that was sampled: after temperature, over the whole vocabulary.
  vLLM's default ignores the temperature, which makes importance ratios wrong.
- The token that ends a turn is among the sampled ones: the policy chose it, so the trainer trains it.
- An adapter's name is never given to other weights, nor its number: a prefix cache that knows either cannot mix versions.
- Later turns have priority over first ones: they hold KV cache, and finish episodes that have begun.

Supports vLLM 0.26 to 0.32; tested with 0.32. vLLM's own types end here.
"""

import asyncio
import gc
import signal
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import structlog

from common.errors import Fatal, HandedBack, Reject
from common.pools import precision_on
from rollout_svc.engine.config import CHECK_PRIORITY, EXACT, ROUGH, URGENT_PRIORITY, EngineSettings
from rollout_svc.engine.process import death, kv_tokens_of, one_line, runs_on_cpu, shut_down, signal_to, silence, start_llm, tokens_so_far
from rollout_svc.engine.work import Gate, Sampled, SampleRequest, WorkMeter, invariance_requests, require_embedded, warm_up_request

HEALTH_PERIOD_S = 1.0
PROBE_PERIOD_S = 10.0
"""Seconds between liveness probes of the engine."""
PATIENCE_S = 120.0
CPU_PATIENCE_S = 300.0
"""Maximum time to an answer: it comes between two steps, and on a CPU one step with long prompts may take a minute or more."""

T = TypeVar("T")
log = structlog.get_logger()


class Engine:
    """One vLLM engine. Belongs to the event loop that started it. `parking/` closes and opens it, and moves its weights."""

    def __init__(self, llm: Any, settings: EngineSettings, thread: ThreadPoolExecutor | None, *, cpu: bool) -> None:
        self._llm: Any = llm  # AsyncLLM, None while closed; vLLM is imported late and its types are loose
        self._thread = thread
        self._requests: dict[str, Any] = {}  # adapter name → vLLM's LoRARequest
        self._next_number = 1
        self.settings = settings
        self.is_cpu = cpu
        self.canary_tolerance = EXACT if cpu and precision_on(settings.precision, cpu=cpu) == "float32" else ROUGH
        self.patience_s = CPU_PATIENCE_S if cpu else PATIENCE_S
        """Maximum time to an answer before the engine counts as stuck."""
        self.is_invariant = False
        """Whether `warm_up` found that log-probabilities do not depend on the batch."""
        self._is_stuck = self._is_halted = False
        self.is_waking = False
        """Whether a wake is in progress, which reports by itself that the engine is dead."""
        self._asking = asyncio.Lock()
        self.gate = Gate(is_open=llm is not None)
        self.work = WorkMeter()

    # ----------------------------------------------------------------------------------------------------------- start

    @classmethod
    async def start(cls, settings: EngineSettings) -> "Engine":
        """An engine that takes requests. Raises: Fatal, with the cause in one line."""
        engine = cls.closed(settings)
        await engine.open()
        engine.gate.open()
        return engine

    @classmethod
    def closed(cls, settings: EngineSettings) -> "Engine":
        return cls(None, settings, None, cpu=runs_on_cpu(settings))

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
        self._llm, self._thread = handed_over.pop(), thread
        log.info("engine_started", model=self.settings.model, seconds=round(time.monotonic() - started, 1), kv_tokens=self.kv_tokens)

    async def shut(self) -> None:
        """Close vLLM, for `open`. No request may be inside."""
        async with self._asking:  # a question to it would stay without an answer
            llm, thread, self._llm, self._thread = self._llm, self._thread, None, None
            llm.output_handler.cancel()  # it would take the end of the process for a failure
            await asyncio.to_thread(shut_down, llm)
            del llm
            assert thread is not None
            thread.shutdown(wait=False)
            gc.collect()

    def close(self) -> None:
        """Close vLLM for ever."""
        if self._llm is None:
            return
        self._llm.shutdown(timeout=0)
        if self._thread is not None:
            self._thread.shutdown(wait=False)
        # vLLM's own clean-up reruns when the object is freed, and fails if that is while the interpreter ends.
        self._llm = None
        gc.collect()
        gc.freeze()  # all that vLLM imported would be walked once more at exit, for seconds

    async def warm_up(self) -> None:
        """Sample once, so that the first request does not pay for one-time work; check invariance where the engine is set up for it.

        Raises: Fatal when it cannot sample, or is not invariant although the pool demands it.
        """
        await self.sample(warm_up_request(0, 2, self._check_priority))
        if not self.settings.wants_invariance(cpu=self.is_cpu):
            return
        requests = invariance_requests(self.settings.context_tokens, self._check_priority)
        alone = [await self.sample(request) for request in requests]
        together = await asyncio.gather(*(self.sample(request) for request in requests))
        self.is_invariant = alone == together
        if not self.is_invariant and self.settings.invariant is True:
            raise Fatal(
                "the pool says invariant = true, but this engine's log-probabilities depend on what else is in its batch; "
                'use float32 on a CPU with AVX2 or AVX-512, or set invariant = "auto"'
            )
        log.info("engine_checked", invariant=self.is_invariant)

    @property
    def _check_priority(self) -> int:
        """Priority of what runs before the engine is awake, where it sleeps at all."""
        return CHECK_PRIORITY if self.settings.sleeps else 0

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds; 0 while closed."""
        return kv_tokens_of(self._llm) if self._llm is not None else 0

    async def wait_fatal(self) -> None:
        """Never returns. Raises: Fatal once the engine's process is dead, or lives and answers nothing for `patience_s`."""
        probing = asyncio.create_task(self._probe())
        try:
            while not probing.done():
                if self.is_dead and not self.is_waking:
                    raise death(self._llm)
                await asyncio.wait({probing}, timeout=HEALTH_PERIOD_S)
            await probing
        finally:
            probing.cancel()

    async def _probe(self) -> None:
        while True:
            async with self._asking:
                try:
                    if self._llm is not None and not self._is_halted and not self.is_waking:
                        await self._answer(self._llm.list_loras)
                except Fatal:
                    raise
                except Exception as error:
                    raise Fatal(f"the inference engine could not list its adapters: {one_line(error)}") from None
            await asyncio.sleep(PROBE_PERIOD_S)

    async def _answer(self, question: Callable[[], Awaitable[T]]) -> T:
        """The engine's errors go through. Raises: Fatal when it is dead, or does not answer within `patience_s`, and ever after."""
        if self._is_stuck:
            raise silence(self.patience_s)
        answer = asyncio.ensure_future(question())
        try:
            await asyncio.wait({answer}, timeout=self.patience_s)
            if not answer.done():
                self._is_stuck = True
                raise silence(self.patience_s)
            if self.is_dead:
                raise death(self._llm)
            return answer.result()
        finally:
            answer.cancel()

    # ---------------------------------------------------------------------------------------------------------- sample

    async def sample(self, request: SampleRequest) -> Sampled:
        """One continuation of `request.ids`. Ends with "aborted" when `abort` is called, or when cancelled.

        Raises: Reject when the engine refuses the request; HandedBack after `hand_back`; Fatal when the engine is dead.
        """
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            seed=request.seed,
            stop_token_ids=list(request.stop_ids),
            ignore_eos=True,  # the model's configuration may name another end than the chat template has
            logprobs=0,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY if request.stop_strings is None else RequestOutputKind.DELTA,
            skip_clone=True,  # they are this request's own
        )
        ids: list[int] = []
        logprobs: list[float] = []
        finish: str | None = None
        outputs = self.generate(request.request_id, request.ids, params, request.adapter, request.priority, task=request.task)
        async with aclosing(outputs):
            async for output in outputs:
                answer = output.outputs[0]
                ids += answer.token_ids
                logprobs += answer.logprobs.logprobs if answer.logprobs is not None else []
                finish = answer.finish_reason
                if request.stop_strings is not None and (late := request.stop_strings.tokens_after(answer.token_ids)) is not None:
                    # The engine may be ahead by some tokens: without them the answer does not depend on time.
                    ids, logprobs, finish = ids[: len(ids) - late], logprobs[: len(logprobs) - late], "stop"
                    break
        if finish not in ("stop", "length"):
            return Sampled([], [], "aborted")
        if len(ids) != len(logprobs):
            raise Fatal(f"vLLM gave {len(logprobs)} log-probabilities for {len(ids)} tokens: this version of it is not understood")
        return Sampled(ids, logprobs, finish)

    async def prompt_logprobs(self, ids: Sequence[int], adapter: str | None) -> list[float]:
        """Log-probabilities of tokens 1…T-1 of `ids` (T,), at temperature 1. Raises: as `sample`."""
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY)
        priority = min(URGENT_PRIORITY, self._check_priority)  # an adapter's first requests wait for it
        outputs = [output async for output in self.generate(f"canary:{adapter}", ids, params, adapter, priority)]
        if not outputs:
            raise death(self._llm)
        return [outputs[-1].prompt_logprobs[place][token].logprob for place, token in enumerate(ids) if place > 0]

    async def abort(self, request_ids: Sequence[str]) -> None:
        """End these requests; one that has ended is no error."""
        self.gate.drop(request_ids)
        if request_ids and self._llm is not None:
            await self._llm.abort(list(request_ids))

    async def hand_back(self) -> None:
        """End all requests that are inside: each raises HandedBack to its caller. Those at the gate stay."""
        await self.abort(self.work.hand_back())
        await self.work.idle.wait()

    async def generate(
        self, request_id: str, ids: Sequence[int], params: Any, adapter: str | None, priority: int, apart: str = "", task: str = ""
    ) -> AsyncGenerator[Any]:
        """vLLM's outputs for one request, aborted when the generator is closed early. `apart`: whose prefix cache; `task`: whose tokens."""
        if priority > CHECK_PRIORITY and not await self.gate.enter(request_id):
            return
        require_embedded(ids, self._llm.vllm_config.model_config.get_vocab_size())
        lora = self._requests[adapter] if adapter is not None else None
        prompt = {"type": "token", "prompt_token_ids": list(ids)} | ({"cache_salt": apart} if apart else {})
        entry = self.work.begin(request_id, task)
        try:
            async with aclosing(self._llm.generate(prompt, params, request_id, lora_request=lora, priority=priority)) as outputs:
                async for output in outputs:
                    entry.sampled(len(output.outputs[0].token_ids))
                    yield output
        except HandedBack:
            raise
        except Exception as error:  # vLLM's errors about one request have had several base classes
            raise death(self._llm) if self.is_dead else Reject(f"the engine refuses request {request_id}: {one_line(error)}") from None
        finally:
            self.work.end(entry)

    # -------------------------------------------------------------------------------------------------------- adapters

    async def load(self, name: str, folder: Path) -> None:
        """Load the PEFT adapter in `folder`. Raises: Reject when the engine does not take it; Fatal when the engine is dead or stuck."""
        from vllm.lora.request import LoRARequest

        number, self._next_number = self._next_number, self._next_number + 1
        request = LoRARequest(name, number, str(folder))
        await self._add(request)
        self._requests[name] = request

    async def reload(self, name: str) -> None:
        """Load an adapter from its folder once more, which the engine has dropped; frozen requests have its number. Raises: as `load`."""
        await self._add(self._requests[name])

    async def _add(self, request: Any) -> None:
        try:
            await self._answer(lambda: self._llm.add_lora(request))
        except Fatal:
            raise
        except Exception as error:
            raise Reject(f"adapter {request.lora_name} cannot be loaded: {one_line(error)}") from None

    async def unload(self, name: str) -> None:
        """Forget an adapter that no request uses. Raises: Fatal when the engine still holds it afterwards."""
        request = self._requests.pop(name)
        try:
            await self._answer(lambda: self._llm.remove_lora(request.lora_int_id))
            held: set[int] = await self._answer(self._llm.list_loras)
        except Fatal:
            raise
        except Exception as error:
            raise Fatal(f"the engine did not answer when unloading {name}: {one_line(error)}") from None
        if request.lora_int_id in held:
            raise Fatal(f"the engine still lists adapter {name} after unloading it")

    async def loaded(self) -> set[str]:
        """Names of the adapters that the engine itself lists."""
        held: set[int] = await self._llm.list_loras()
        return {name for name, request in self._requests.items() if request.lora_int_id in held}

    # --------------------------------------------------------------------------------------------------------- parking

    @property
    def is_open(self) -> bool:
        return self._llm is not None

    @property
    def is_dead(self) -> bool:
        return self._llm is not None and self._llm.errored

    async def pause(self, *, keep_cache: bool) -> None:
        """Freeze all requests, those in the middle too, until `resume`; checks still run."""
        await self._answer(lambda: self._llm.pause_generation(mode="keep", clear_cache=not keep_cache))

    async def resume(self) -> None:
        await self._answer(lambda: self._llm.resume_generation())

    async def halt(self) -> None:
        """Stop the engine's processes: until `proceed` they use no processor, whatever is asked of them."""
        async with self._asking:
            self._is_halted = True
            signal_to(self._llm, signal.SIGSTOP)

    def proceed(self) -> None:
        if self._is_halted:
            self._is_halted = False
            signal_to(self._llm, signal.SIGCONT)

    async def worker(self, method: str, **arguments: Any) -> Any:
        """Result of this method of vLLM's worker, of the first where there are several. Raises: what it raises, as vLLM's exception."""
        return (await self._answer(lambda: self._llm.collective_rpc(method, kwargs=arguments)))[0]

    def progress(self) -> dict[str, int]:
        """Tokens so far of requests that are inside, by id."""
        return tokens_so_far(self._llm) if self._llm is not None else {}

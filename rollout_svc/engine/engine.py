"""The door to vLLM: token ids in, token ids and their log-probabilities out, under any of many adapters concurrently.

Guarantees beyond vLLM's own interface:

- Log-probabilities belong to the distribution that was sampled: after temperature, over the whole vocabulary.
vLLM's default ignores the temperature, which makes importance ratios wrong.
- The token that ends a turn is among the sampled ones: the policy chose it, so the trainer trains it.
- Names and numbers of adapters are never reused for other weights, so that a prefix cache keyed by either cannot mix versions.
- Later turns have priority over first ones: they hold KV cache, and finish episodes that have begun.

Supports vLLM 0.32 alone (`start.VLLM`). No vLLM type leaves this package.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import structlog

from common.errors import Fatal, HandedBack, Reject
from common.pools import precision_on
from rollout_svc.engine.config import CHECK_PRIORITY, EXACT, ROUGH, URGENT_PRIORITY, EngineSettings
from rollout_svc.engine.process import EngineProcess, one_line
from rollout_svc.engine.profile import require_goals
from rollout_svc.engine.work import Gate, Sampled, SampleRequest, WorkMeter, invariance_requests, require_embedded, warm_up_request

log = structlog.get_logger()


class Engine:
    """Requests and adapters of one vLLM instance. `accelerators/` opens and closes its process and moves its weights."""

    def __init__(self, process: EngineProcess) -> None:
        self.process = process
        self.settings = process.settings
        self.is_cpu = process.is_cpu
        self._requests: dict[str, Any] = {}  # adapter name → vLLM's LoRARequest
        self._next_number = 1
        exact = self.is_cpu and precision_on(self.settings.precision, cpu=True) == "float32"
        self.canary_tolerance = EXACT if exact else ROUGH
        self.is_invariant = False
        """Whether `warm_up` found that log-probabilities do not depend on the batch."""
        self.gate = Gate(is_open=process.is_open)
        self.work = WorkMeter()

    @classmethod
    async def start(cls, settings: EngineSettings) -> "Engine":
        """Start an engine that accepts requests. Raises: Fatal, with the cause in one line."""
        engine = cls(EngineProcess(settings))
        await engine.process.open()
        engine.gate.open()
        return engine

    async def warm_up(self) -> None:
        """Sample once, so that the first request does not pay one-time costs; check invariance if the engine is set up for it.

        Raises: Fatal if sampling fails, if log-probabilities are not invariant although the pool demands it, or if the idle engine misses
        the pool's latency goals.
        """
        await self.sample(warm_up_request(0, 2, self._check_priority))
        if self.settings.wants_invariance(cpu=self.is_cpu):
            await self._check_invariance()
        await require_goals(self.sample, self.settings, self._check_priority)

    async def _check_invariance(self) -> None:
        async with self._random_adapters() as adapters:
            requests = invariance_requests(self.settings.context_tokens, self._check_priority, adapters)
            alone = [await self.sample(request) for request in requests]
            together = await asyncio.gather(*(self.sample(request) for request in requests))
        self.is_invariant = alone == together
        if not self.is_invariant and self.settings.invariant is True:
            raise Fatal(
                "the pool says invariant = true, but this engine's log-probabilities depend on what else is in its batch; "
                'use float32 on a CPU with AVX2 or AVX-512, or set invariant = "auto"'
            )
        log.info("engine_checked", invariant=self.is_invariant)

    @asynccontextmanager
    async def _random_adapters(self) -> AsyncGenerator[list[str]]:
        """Inside the block adapters of these names are loaded, whose products have kernels of their own."""
        from vllm.lora.request import LoRARequest

        numbers = [self._next_number, self._next_number + 1]
        self._next_number += len(numbers)
        added = {f"random-{number}": LoRARequest(f"random-{number}", number, "in-memory") for number in numbers}
        await self.process.worker("marlaas_random_adapters", numbers=numbers, rank=self.settings.max_rank)
        self._requests |= added
        yield list(added)
        for name in added:
            await self.unload(name)

    @property
    def _check_priority(self) -> int:
        """Priority of requests before the first wake completes: that of checks if the engine can sleep, else 0."""
        return CHECK_PRIORITY if self.settings.sleeps else 0

    # ---------------------------------------------------------------------------------------------------------- sample

    async def sample(self, request: SampleRequest) -> Sampled:
        """Sample one continuation of `request.ids`. It finishes as "aborted" after `abort` or cancellation.

        Raises: Reject if the engine refuses the request; HandedBack after `hand_back`; Fatal if the engine is dead.
        """
        from vllm.sampling_params import RequestOutputKind, SamplingParams

        params = SamplingParams(
            temperature=request.temperature,
            max_tokens=request.max_tokens,
            seed=request.seed,
            stop_token_ids=list(request.stop_ids),
            ignore_eos=True,  # the model's configuration may name an end token that the chat template does not use
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
                    # The engine may be some tokens ahead: dropping them makes the answer independent of timing.
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
            raise self.process.death()
        return [outputs[-1].prompt_logprobs[place][token].logprob for place, token in enumerate(ids) if place > 0]

    async def abort(self, request_ids: Sequence[str]) -> None:
        """Abort these requests; ids that have already finished are ignored."""
        self.gate.drop(request_ids)
        if request_ids and self.process.llm is not None:
            await self.process.llm.abort(list(request_ids))

    async def hand_back(self, request_ids: Collection[str] | None = None) -> None:
        """Abort these requests, or all inside the engine: each raises HandedBack in its caller. Requests at the gate stay."""
        await self.abort(self.work.hand_back(request_ids))
        if request_ids is None:
            await self.work.idle.wait()

    async def generate(
        self, request_id: str, ids: Sequence[int], params: Any, adapter: str | None, priority: int, apart: str = "", task: str = ""
    ) -> AsyncGenerator[Any]:
        """Yield vLLM's outputs for one request; closing the generator early aborts it. `apart`: tenant whose prefix cache it uses;
        `task`: task that its tokens are counted for.
        """
        if priority > CHECK_PRIORITY and not await self.gate.enter(request_id):
            return
        require_embedded(ids, self.process.llm.vllm_config.model_config.get_vocab_size())
        lora = self._requests[adapter] if adapter is not None else None
        prompt = {"type": "token", "prompt_token_ids": list(ids)} | ({"cache_salt": apart} if apart else {})
        entry = self.work.begin(request_id, task)
        try:
            async with aclosing(self.process.llm.generate(prompt, params, request_id, lora_request=lora, priority=priority)) as outputs:
                async for output in outputs:
                    entry.sampled(len(output.outputs[0].token_ids))
                    yield output
        except HandedBack:
            raise
        except Exception as error:  # vLLM's errors about one request have had several base classes
            raise (
                self.process.death() if self.process.is_dead else Reject(f"the engine refuses request {request_id}: {one_line(error)}")
            ) from None
        finally:
            self.work.end(entry)

    # -------------------------------------------------------------------------------------------------------- adapters

    async def load(self, name: str, folder: Path) -> None:
        """Load the PEFT adapter in `folder`. Raises: Reject if the engine refuses it; Fatal if the engine is dead or stuck."""
        from vllm.lora.request import LoRARequest

        number, self._next_number = self._next_number, self._next_number + 1
        request = LoRARequest(name, number, str(folder))
        await self._add(request)
        self._requests[name] = request

    async def reload(self, name: str) -> None:
        """Reload an adapter that the engine dropped, under its old number, which frozen requests refer to. Raises: as `load`."""
        await self._add(self._requests[name])

    async def _add(self, request: Any) -> None:
        try:
            await self.process.answer(lambda: self.process.llm.add_lora(request))
        except Fatal:
            raise
        except Exception as error:
            raise Reject(f"adapter {request.lora_name} cannot be loaded: {one_line(error)}") from None

    async def unload(self, name: str) -> None:
        """Unload an adapter that no request uses. Raises: Fatal if the engine still lists it afterwards."""
        request = self._requests.pop(name)
        try:
            await self.process.answer(lambda: self.process.llm.remove_lora(request.lora_int_id))
            held: set[int] = await self.process.answer(self.process.llm.list_loras)
        except Fatal:
            raise
        except Exception as error:
            raise Fatal(f"the engine did not answer when unloading {name}: {one_line(error)}") from None
        if request.lora_int_id in held:
            raise Fatal(f"the engine still lists adapter {name} after unloading it")

    async def loaded(self) -> set[str]:
        """Names of the adapters that the engine lists as loaded."""
        held: set[int] = await self.process.llm.list_loras()
        return {name for name, request in self._requests.items() if request.lora_int_id in held}

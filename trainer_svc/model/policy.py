"""Interface to torch and transformers: the frozen base model, which scores sampled tokens under adapters.

It holds no task's state. Logits exist only at sampled positions and in chunks (`head.py`). While it is parked, its weights are in host
memory or dropped (`weights.py`); after waking it computes only if its canary agrees.
"""

import gc
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import structlog
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from common.accelerators.executors import StateMismatch, Tier
from common.errors import Fatal
from common.pools import ALL_LAYERS, precision_on
from common.pools.memory import ModelShape
from common.pools.model_files import hub_model, why_gone
from common.spec import LORA_TARGETS
from trainer_svc.device.errors import classify_move_error, is_out_of_memory
from trainer_svc.device.memory import give_large_tensors_their_own_pages, return_freed_memory, set_up_allocators_of_gpu
from trainer_svc.model.attention import BRANCHING, attention_calls
from trainer_svc.model.batched_lora import Part, builder_on, by_one
from trainer_svc.model.head import sampled_logprobs
from trainer_svc.model.layers import Recomputation, decoder_layers, select_in_last_mlp
from trainer_svc.model.lora import Layout, LoraLinear, Product, adapt, attached
from trainer_svc.model.packing import Packed, Row, Sample, collate
from trainer_svc.model.weights import Weights

CANARY_TOKENS = 24
NO_ADAPTER = Layout(1, 1.0, ())
CHECK_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.2}
WAKE_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.02}
"""Maximum difference in nats of a canary on a GPU from the one before parking; on a CPU it must be equal bit for bit."""


log = structlog.get_logger()


@dataclass(frozen=True, eq=False)
class Adapted:
    """A task's adapter and temperature. `vector` has the layout `layout`: float32, on the policy's device."""

    layout: Layout
    vector: Tensor
    temperature: float = 1.0

    def base(self) -> "Adapted":
        """The base model without an adapter, at the same temperature."""
        return Adapted(NO_ADAPTER, self.vector.new_zeros(0), self.temperature)


@dataclass(frozen=True, eq=False)
class TokenScores:
    """Log-probability and entropy of each sampled token. Shapes: (N,) float32; `entropy_N` carries a gradient only on request."""

    logprobs_N: Tensor
    entropy_N: Tensor


class Policy:
    """One frozen base model on one device, always in evaluation mode: no dropout."""

    def __init__(
        self,
        model: PreTrainedModel,
        device: torch.device,
        *,
        float32_head: bool = False,
        read: Callable[[], PreTrainedModel] | None = None,
    ) -> None:
        """Replaces linear layers of `model` in place. `float32_head`: compute logits in float32. `read`: reads the same model again.

        Raises: Fatal if its architecture is not supported.
        """
        self._read = read
        self._model = model.to(device).eval().requires_grad_(False)  # pyright: ignore[reportArgumentType]  # stub knows only strings
        self._weights = Weights(self._model, device)
        self.device = device
        self.tier = Tier.DEVICE
        self.layers: dict[str, LoraLinear] = adapt(self._model, LORA_TARGETS)
        self._selective = select_in_last_mlp(self._model)
        self._decoder = self._model.base_model
        self._head = _plain_head(self._model)
        self._float32_head = float32_head
        self.vocabulary = self._head.shape[0]
        self.width = self._head.shape[1]
        self.hub_model = hub_model(self._model.name_or_path or "")
        self.shape = ModelShape.of(self._model.config.to_dict())
        if device.type == "cpu":
            give_large_tensors_their_own_pages(self.width)
        self.shares_prefixes = True
        self.batched_products = builder_on(device, self.dtype)
        self._recomputation: Recomputation | None = None
        # Four dimensions: models then use it as a finished mask, and derive none from the positions.
        self._no_mask = torch.zeros(1, 1, 1, 1, dtype=self.dtype, device=device)
        self._check()
        self.canary_N = self._canary()
        """Log-probabilities of the base model's canary: (N,) float32, on the CPU."""

    @classmethod
    def load(
        cls,
        folder_or_name: str,
        device: torch.device,
        precision: Literal["auto", "float32", "bfloat16"] = "auto",
        head: Literal["model", "float32"] = "model",
        named: str = "",
    ) -> "Policy":
        """Load the base model and output layer in the pool's precisions. `named`: the model's name in the pools file, for errors.

        Raises: Fatal if it cannot be loaded.
        """
        dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision_on(precision, cpu=device.type == "cpu")]
        read = partial(_read_model, folder_or_name, dtype, named or folder_or_name)
        return cls(read(), device, float32_head=head == "float32", read=read)

    @property
    def weights_bytes(self) -> int:
        """Bytes of the base model's tensors, in whichever tier."""
        return self._weights.size_bytes

    def park(self, tier: Tier) -> None:
        """Move the weights off the device, or drop them; a parked policy can only move to a deeper tier.

        If the file for host memory cannot be written, or no memory be page-locked, the weights are dropped. Raises: ValueError for a tier
        from which it cannot wake.
        """
        if tier not in (Tier.DEVICE, Tier.HOST, Tier.DISK) or (tier is Tier.DISK and self._read is None):
            raise ValueError(f"a policy cannot wake from tier '{tier}'")
        if tier.depth <= self.tier.depth:
            return
        if tier is Tier.HOST:
            tier = self._to_host()
        if tier is Tier.DISK:
            self._weights.drop()
        self.tier = tier
        return_freed_memory()

    def _to_host(self) -> Tier:
        try:
            self._weights.to_host()
            return Tier.HOST
        except (OSError, RuntimeError) as error:
            if self._read is None or not (isinstance(error, OSError) or is_out_of_memory(error)):
                raise
            log.warning("parked_deeper", reason=str(error))
            return Tier.DISK

    def wake(self) -> None:
        """Bring the weights back to the device, and compare their canary.

        Raises: NoMemory, and the weights stay where they were; StateMismatch, and the weights are dropped if they can be read again; Fatal.
        """
        before, failed = self.tier, None
        try:
            self._bring_back()
        except Exception as error:
            failed = classify_move_error(error, "the base model")
        if failed is not None:
            gc.collect()  # frames of the failed read form cycles that hold the data read so far
            deepest = Tier.DISK if self._read and isinstance(failed, StateMismatch) else before
            self.tier = Tier.DEVICE
            self.park(deepest)
            raise failed
        self.tier = Tier.DEVICE

    def _bring_back(self) -> None:
        if self.tier is Tier.DISK and self._read is not None:
            try:
                self._weights.take(self._read())
            except Fatal as error:
                raise StateMismatch(str(error)) from None
        elif self.tier is Tier.HOST:
            self._weights.to_device()
        if self.device.type != "cpu":
            return_freed_memory()  # the host's, which the weights have left
        require_canary(self._canary(), self.canary_N, self.device, self.dtype)

    def _canary(self) -> Tensor:
        sample = canary_sample(self.vocabulary)
        nothing = Adapted(NO_ADAPTER, torch.zeros(0, device=self.device))
        with torch.no_grad():
            return self.scores(collate([(0, Row(sample.input_tokens, (sample,)))]), [nothing]).logprobs_N.float().cpu()

    def recompute_layers(self, count: int = ALL_LAYERS) -> None:
        """Recompute the activations of the first `count` layers in the backward pass from now on, at most all but the last layer.

        Call it once. Raises: Fatal if the model has no list of layers.
        """
        layers = decoder_layers(self._model, self.layers)
        if layers is None:
            raise Fatal(f"{type(self._model).__name__} has no list of layers to recompute; set checkpointing of the pool to 'off'")
        self._recomputation = Recomputation(layers, min(count, len(layers) - 1))

    @property
    def recomputed(self) -> int:
        """Number of layers whose activations the backward pass recomputes."""
        return self._recomputation.count if self._recomputation else 0

    @property
    def dtype(self) -> torch.dtype:
        return self._head.dtype

    def scores(self, packed: Packed, adapted: Sequence[Adapted], *, entropy_gradient: bool = False) -> TokenScores:
        """Log-probability and entropy of every sampled token; `adapted`: adapter and temperature of each segment."""
        hidden_B_T_H = self._hidden(packed, adapted)
        hidden_N_H = hidden_B_T_H.view(-1, self.width).index_select(0, self.tensor(packed.predictor_N))
        counts = [segment.sampled.stop - segment.sampled.start for segment in packed.segments]
        temperatures_N = self.tensor(np.repeat(np.array([part.temperature for part in adapted], np.float32), counts))
        target_N = self.tensor(packed.target_N)
        found = sampled_logprobs(
            hidden_N_H, self._head, target_N, temperatures_N, entropy_gradient=entropy_gradient, float32=self._float32_head
        )
        return TokenScores(*found)

    def _hidden(self, packed: Packed, adapted: Sequence[Adapted]) -> Tensor:
        columns = packed.ids_B_T.shape[1]
        ends = [0, *(segment.rows.stop * columns for segment in packed.segments)]
        products = self._products(ends, adapted)
        spans = attention_calls(packed, self.tensor, self.dtype)
        with ExitStack() as stack:
            if self._selective:
                mlp, names = self._selective
                wanted_W = np.unique(packed.predictor_N)
                if len(adapted) > 1:  # a single adapter's products fit any number of tokens
                    narrow = self._products(np.searchsorted(wanted_W, ends).tolist(), adapted)
                    products |= {name: narrow[name] for name in names if name in narrow}
                stack.enter_context(mlp.only(self.tensor(wanted_W)))
            stack.enter_context(attached(self.layers, products))
            if self._recomputation:  # the last layer, to which `mlp.only` applies, is never recomputed
                stack.enter_context(self._recomputation.within(partial(attached, self.layers, products)))
            output = self._decoder(
                input_ids=self.tensor(packed.ids_B_T),
                attention_mask=None if spans is None else self._no_mask,
                position_ids=None if spans is None else self.tensor(packed.positions_B_T),
                use_cache=False,
                spans=spans,
            )
        return output.last_hidden_state

    def _products(self, ends: Sequence[int], adapted: Sequence[Adapted]) -> dict[str, Product]:
        """Product of each layer, with `adapted[i]` for the tokens from `ends[i]` to `ends[i + 1]`."""
        counts = [end - start for start, end in pairwise(ends)]
        parts = [Part(tokens, part.layout, part.vector.to(self.dtype)) for tokens, part in zip(counts, adapted, strict=True)]
        return (by_one if len(parts) == 1 else self.batched_products)(parts)

    def synchronize(self) -> None:
        """Wait until the device has computed all requested work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def tensor(self, array: NDArray[Any]) -> Tensor:
        """The array on this policy's device."""
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _check(self) -> None:
        """Compare with the model's own logits. Some layers (recurrent, windowed) cannot share a prefix, or mix tokens in an MLP:
        `shares_prefixes` or the selective MLP is then off. Raises: Fatal if the output layer does more than multiply."""
        whole = canary_sample(self.vocabulary)
        prefix, sampled_T = 9, (np.arange(CANARY_TOKENS) >= 9).astype(np.uint8)
        other_T = np.concatenate([whole.ids_T[:prefix], whole.ids_T[: prefix - 1 : -1]])
        samples = [Sample(ids_T, sampled_T, whole.logprobs_T, 0.0, 0.0) for ids_T in (whole.ids_T, other_T)]
        alone, together = [Row(sample.input_tokens, (sample,)) for sample in samples], [Row(prefix, tuple(samples))]
        with torch.no_grad():
            expected_N = torch.cat([self._reference(sample)[prefix - 1 :] for sample in samples])
            if not self._agrees(alone, expected_N):
                self._selective = None
                if not self._agrees(alone, expected_N):
                    raise Fatal(
                        "this base model's output layer does more than multiply (soft-capping, scaling, …); the trainer cannot use it"
                    )
            self.shares_prefixes = self._agrees(together, expected_N)

    def _agrees(self, rows: Sequence[Row], expected_N: Tensor) -> bool:
        nothing = Adapted(NO_ADAPTER, torch.zeros(0, device=self.device))
        logprobs_N = self.scores(collate([(0, row) for row in rows]), [nothing]).logprobs_N
        return torch.allclose(logprobs_N, expected_N, atol=CHECK_TOLERANCE[self.dtype])

    def _reference(self, sample: Sample) -> Tensor:
        ids = self.tensor(sample.ids_T.astype(np.int64))
        logits = self._model(input_ids=ids[None], use_cache=False).logits[0, :-1].float()
        return logits.log_softmax(-1).gather(1, ids[1:, None])[:, 0]


def _read_model(folder_or_name: str, dtype: torch.dtype, named: str) -> PreTrainedModel:
    if (reason := why_gone(folder_or_name, named)) is not None:
        raise Fatal(reason)
    try:
        return AutoModelForCausalLM.from_pretrained(folder_or_name, dtype=dtype, attn_implementation=BRANCHING)
    except (OSError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        raise Fatal(f"base model '{folder_or_name}' cannot be loaded: {error}; correct `model` in the pools file") from None


def require_canary(found_N: Tensor, expected_N: Tensor, device: torch.device, dtype: torch.dtype) -> None:
    """Raises: StateMismatch if an awoken base model computes other numbers than before it was parked."""
    bound = WAKE_TOLERANCE[dtype] if device.type != "cpu" else 0.0
    difference = float((found_N - expected_N).abs().max()) if found_N.shape == expected_N.shape else float("inf")
    if not difference <= bound:  # also true for nan
        raise StateMismatch(
            f"the base model that woke computes other numbers than before it was parked: its canary differs by {difference:.3g} nats, "
            f"at most {bound:g} are allowed; no step was computed; put back the model's folder, or restart this process"
        )


def choose_device(wanted: str) -> torch.device:
    """The device; `auto` is the GPU if there is one. Raises: Fatal for `cuda` without a GPU."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise Fatal("MARLAAS_TRAINER_DEVICE is 'cuda', but torch sees no GPU; set it to 'auto' or 'cpu'")
    return torch.device("cuda" if wanted != "cpu" and torch.cuda.is_available() else "cpu")


def prepare_torch(threads: int, device: torch.device) -> None:
    """Set torch's number of CPU threads; on a CPU, also make it deterministic.

    On a GPU it sets up PyTorch's allocators, and disables cuDNN attention, which compiles a plan for each new shape: seconds in every step,
    whose trajectories have new lengths each time.
    """
    torch.set_num_threads(threads)
    torch.backends.cuda.enable_cudnn_sdp(device.type != "cuda")
    if device.type == "cuda":
        set_up_allocators_of_gpu()
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]  # costs time, helps debugging only


def _plain_head(model: PreTrainedModel) -> Tensor:
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear) or "bias" in dict(head.named_parameters()):
        raise Fatal(f"{type(model).__name__} has no plain output layer; the trainer needs a linear one without bias")
    return head.weight


def canary_sample(vocabulary: int) -> Sample:
    """Canary: ids that depend only on the vocabulary, all but the first marked as sampled."""
    ids = (np.arange(1, CANARY_TOKENS + 1, dtype=np.int64) * 2_654_435_761 % 2**32 * vocabulary >> 32).astype("<i4")
    sampled = (np.arange(CANARY_TOKENS) > 0).astype(np.uint8)
    return Sample(ids, sampled, np.zeros(CANARY_TOKENS, np.float32), 0.0, 0.0)

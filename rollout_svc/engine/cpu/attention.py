"""vLLM's CPU attention with KV cache blocks of 16 tokens.

A prefix is shared in whole blocks; the rest of a turn's prompt is recomputed. vLLM declares multiples of 32 for a CPU, although its
kernels have a variant for blocks of 16, "vec16", which they select for that size. With prompts of 24 to 80 tokens, typical of dialogues
with tools, 19 tokens a turn are recomputed with blocks of 16, and 36 with 32.
"""

from typing import Any

from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend


class SmallBlocks(CPUAttentionBackend):
    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:  # noqa: ARG004  # the same for every layer
        return [MultipleOf(16)]

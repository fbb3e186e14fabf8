"""vLLM's attention for CPUs with blocks of 16 tokens in the KV cache.

A prefix is shared in whole blocks, and the rest of a turn's prompt is recomputed. vLLM states multiples of 32 for a CPU, although
its kernels have a form for blocks of 16, "vec16", which it takes by itself where the size asks for it. With prompts of 24 to 80 tokens,
as dialogues with tools have them, 19 tokens a turn are computed with blocks of 16 where it was 36 with 32.
"""

from typing import Any

from vllm.v1.attention.backend import MultipleOf
from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend


class SmallBlocks(CPUAttentionBackend):
    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:  # noqa: ARG004  # the same for every layer
        return [MultipleOf(16)]

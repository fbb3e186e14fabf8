"""The KV cache shares prefixes in blocks of 16 tokens on a CPU; that what is read from them is right is tests/rollout/test_engine.py's."""

from types import SimpleNamespace
from typing import Any

from vllm.platforms import current_platform
from vllm.utils.import_utils import resolve_obj_by_qualname
from vllm.v1.attention.backends.registry import AttentionBackendEnum

from rollout_svc.engine.config import CPU_BLOCK_TOKENS
from rollout_svc.engine.cpu.attention import SmallBlocks


def test_the_platform_takes_them() -> None:
    config: Any = SimpleNamespace(use_sparse=False, use_mla=False)
    chosen = current_platform.get_attn_backend_cls(AttentionBackendEnum.CPU_ATTN, config)
    assert resolve_obj_by_qualname(chosen) is SmallBlocks
    assert SmallBlocks.supports_block_size(CPU_BLOCK_TOKENS)
    assert not SmallBlocks.supports_block_size(CPU_BLOCK_TOKENS // 2)

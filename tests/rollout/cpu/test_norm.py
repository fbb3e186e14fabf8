"""The compiled norms give what vLLM's composed ones give, also for rows that do not lie side by side."""

import torch
from vllm import ir
from vllm.config import VllmConfig
from vllm.platforms import current_platform

from rollout_svc.engine.cpu import norm

EPSILON = 1e-6


def test_the_norm_of_rows_with_gaps() -> None:
    """Rows as norms of queries get them: heads of a slice of the merged projection."""
    x = torch.randn(5, 96)[:, :64].view(5, 2, 32)
    weight = torch.randn(32)
    expected = ir.ops.rms_norm.impls["native"].impl_fn(x, weight, EPSILON)
    torch.testing.assert_close(norm.rms_norm.impl_fn(x, weight, EPSILON), expected)


def test_the_norm_of_a_sum() -> None:
    x, residual, weight = torch.randn(5, 64), torch.randn(5, 64), torch.randn(64)
    expected, total = ir.ops.fused_add_rms_norm.impls["native"].impl_fn(x, residual, weight, EPSILON)
    normed, added = norm.fused_add_rms_norm.impl_fn(x.clone(), residual.clone(), weight, EPSILON)
    torch.testing.assert_close(normed, expected)
    torch.testing.assert_close(added, total)


def test_what_the_kernels_cannot_take_stays_with_vllm() -> None:
    x, weight = torch.randn(5, 64), torch.randn(64)
    assert norm.rms_norm.supports_args(x, weight, EPSILON)
    assert not norm.rms_norm.supports_args(x, weight.bfloat16(), EPSILON)
    assert not norm.rms_norm.supports_args(x, None, EPSILON)
    assert not norm.rms_norm.supports_args(x, weight, EPSILON, 32)
    assert not norm.fused_add_rms_norm.supports_args(torch.randn(5, 128)[:, :64], x, weight, EPSILON)


def test_the_platform_prefers_them() -> None:
    chosen = current_platform.get_default_ir_op_priority(VllmConfig())
    assert chosen.rms_norm == chosen.fused_add_rms_norm == [norm.PROVIDER, "native"]

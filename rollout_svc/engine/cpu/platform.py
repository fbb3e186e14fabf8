"""vLLM plugin for machines without a GPU: vLLM's CPU platform with our LoRA for many adapters and faster layers.

vLLM finds `register` by name: `vllm.platform_plugins` in pyproject.toml.
"""

import sys
from importlib import import_module
from typing import Any

from vllm.platforms.cpu import CpuPlatform

INVARIANT = "marlaas_invariant"
"""Key of vLLM's `additional_config`: whether log-probabilities must not depend on the batch."""


class ManyAdaptersCpu(CpuPlatform):
    """vLLM's CPU platform with `lora`, `linear`, `norm` and `attention` of this package."""

    is_invariant = False
    """Setting of the engine configured last: vLLM asks for the LoRA class without passing its configuration."""

    @classmethod
    def check_and_update_config(cls, vllm_config: Any) -> None:
        from rollout_svc.engine.cpu import linear  # late: vLLM is still being imported when it looks for platforms

        super().check_and_update_config(vllm_config)
        cls.is_invariant = bool(vllm_config.additional_config.get(INVARIANT))
        linear.install(linear.Measured() if cls.is_invariant else None)

    @classmethod
    def get_attn_backend_cls(cls, *arguments: Any, **named: Any) -> str:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum

        chosen = super().get_attn_backend_cls(*arguments, **named)
        return "rollout_svc.engine.cpu.attention.SmallBlocks" if chosen == AttentionBackendEnum.CPU_ATTN.get_path() else chosen

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return f"rollout_svc.engine.cpu.lora.{'InvariantLora' if cls.is_invariant else 'GroupedLora'}"

    @classmethod
    def import_ir_kernels(cls) -> None:
        """Register vLLM's kernels and the provider of `norm`. vLLM calls this in every process, spawned workers included, before it sets
        priorities.
        """
        super().import_ir_kernels()
        import_module(f"{__package__}.norm")  # registers its provider

    @classmethod
    def get_default_ir_op_priority(cls, vllm_config: Any) -> Any:  # noqa: ARG003  # the same for every model
        from vllm.config.kernel import IrOpPriorityConfig

        from rollout_svc.engine.cpu.norm import PROVIDER

        return IrOpPriorityConfig.with_default(["native"], rms_norm=[PROVIDER, "native"], fused_add_rms_norm=[PROVIDER, "native"])

    @classmethod
    def register_triton_kernel_overrides(cls) -> None:
        """Call vLLM's method with llvmlite hidden: vLLM reads `__dict__` of objects in loaded modules, and llvmlite's library object
        (part of numba) treats that as the name of a C function.
        """
        hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "llvmlite"}
        for name in hidden:
            del sys.modules[name]
        try:
            super().register_triton_kernel_overrides()
        finally:
            sys.modules.update(hidden)


def register() -> str | None:
    """Name of our platform if vLLM would choose its plain CPU platform, else None."""
    from vllm.platforms import cpu_platform_plugin

    if cpu_platform_plugin() != "vllm.platforms.cpu.CpuPlatform":
        return None
    return f"{ManyAdaptersCpu.__module__}.{ManyAdaptersCpu.__qualname__}"

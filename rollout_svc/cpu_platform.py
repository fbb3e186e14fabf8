"""vLLM's plugin for machines without a GPU: its own CPU platform, but with our way to run many adapters in one batch.

vLLM finds `register` by name: `vllm.platform_plugins` in pyproject.toml.
"""

from vllm.platforms.cpu import CpuPlatform


class ManyAdaptersCpu(CpuPlatform):
    """The CPU platform with `cpu_lora.GroupedLora`."""

    @classmethod
    def get_punica_wrapper(cls) -> str:
        return "rollout_svc.cpu_lora.GroupedLora"


def register() -> str | None:
    """The name of our platform where vLLM would choose its plain CPU platform, else None."""
    from vllm.platforms import cpu_platform_plugin

    if cpu_platform_plugin() != "vllm.platforms.cpu.CpuPlatform":
        return None
    return f"{ManyAdaptersCpu.__module__}.{ManyAdaptersCpu.__qualname__}"

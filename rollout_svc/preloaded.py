"""Imports of a sampler on a CPU, for the parent that forks samplers (`marlaas/stack/preloading.py`): CUDA would not survive the fork."""

import rollout_svc.parking.wiring
import rollout_svc.serving.wiring  # noqa: F401
from rollout_svc.engine_process import has_cuda, prepare_import

if not has_cuda():
    prepare_import(cpu=True)
    import vllm.v1.engine.async_llm  # pyright: ignore[reportUnusedImport]  # noqa: F401

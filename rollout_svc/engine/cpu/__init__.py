"""vLLM on a CPU: LoRA for many adapters in one batch, and faster kernels of PyTorch or of vLLM's build that vLLM does not call on CPUs.

platform.py   the plugin through which vLLM finds the other modules
lora.py       adapters of a batch
linear.py     linear layers through PyTorch, and row counts at which a row's result is bitwise stable
norm.py       root-mean-square norms through vLLM's compiled kernels
attention.py  attention with blocks of 16 tokens in the KV cache
worker.py     a worker whose sleep frees memory
"""

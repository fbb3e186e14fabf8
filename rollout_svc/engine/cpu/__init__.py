"""vLLM on a CPU: products of many adapters in one batch, and kernels that its build for CPUs has or PyTorch has, but vLLM does not call.

platform.py   the plugin by which vLLM finds the rest
lora.py       adapters of a batch
linear.py     linear layers, by PyTorch's products, and numbers of rows with which a product's row has the same bits
norm.py       root-mean-square norms, by vLLM's compiled kernels
attention.py  attention with blocks of 16 tokens in the KV cache
worker.py     a worker whose sleep frees memory
"""

"""The engine's kernels on CPUs.

KV cache with shared prefixes  test_attention.py
linear layers                  test_linear.py
many adapters in one batch     test_lora.py
compiled norms                 test_norm.py
bits of a row, in any batch    test_rows.py

Helpers: layers.py.
"""

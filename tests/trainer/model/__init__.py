"""The model of a step.

scores against plain transformers and PEFT  test_policy.py
several adapters in one layer               test_batched_lora.py
the output layer                            test_head.py
packed rows                                 test_packing.py
activation checkpointing                    test_recomputation.py
the last layer's MLP                        test_selective_mlp.py
base weights out of memory and back         test_weights.py
"""

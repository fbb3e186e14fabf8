"""Base models of a deployment: their description, the accelerators that they share, the memory that their training needs, and their files.

pool.py            a pool and the pools file · accelerators.py the accelerators that its pools share
memory.py          estimated memory of training, and of loaded weights
model_files.py     a base model's files
"""

# pyright: reportUnusedImport=false
from common.pools.accelerators import Accelerator, Accelerators, Named, Place, cpu_cores, named_replicas, places, read_accelerators
from common.pools.pool import (
    ALL_LAYERS,
    Goals,
    MaxRank,
    Pool,
    Pools,
    Serving,
    chosen_pool,
    layers_of,
    objections,
    objections_to_name,
    pool_memory,
    precision_on,
    read_pools,
    recomputed_layers,
)

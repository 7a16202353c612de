"""Roles of caches: what a model remembers between tokens, spelled once.

Names are the reference's. Two roles may make one name (an indexer's keys are named like the keys they index). The
planner asks by role, as for weights; a cache that only one architecture has gets its role in that one's own file.
"""

from app.architectures.roles import LayerClass, Op, Role


def cache_role(label: str, stem: str, op: Op) -> Role:
    """A role for a cache named `stem`, with `{}` where the layer number goes; caches have no suffix."""
    return Role(label, stem, LayerClass.REPEATING, op, suffix="")


CACHE_K = cache_role("cache_k", "cache_k_l{}", Op.MUL_MAT)
CACHE_V = cache_role("cache_v", "cache_v_l{}", Op.MUL_MAT)
# keys (and values) of an indexer that chooses which tokens attention looks at
CACHE_INDEXER_K = cache_role("cache_indexer_k", "cache_k_l{}", Op.MUL_MAT)
CACHE_INDEXER_V = cache_role("cache_indexer_v", "cache_v_l{}", Op.MUL_MAT)
CACHE_IDX_K = cache_role("cache_idx_k", "cache_idx_k_l{}", Op.MUL_MAT)
# what a recurrent layer keeps: the last inputs of its convolution (or token shift), and its state
CACHE_R = cache_role("cache_r", "cache_r_l{}", Op.SSM_CONV)
CACHE_S = cache_role("cache_s", "cache_s_l{}", Op.SSM_SCAN)
# the last rows of a per-layer embedding's convolution
CACHE_PLE_R = cache_role("cache_ple_r", "cache_ple_r_l{}", Op.SSM_CONV)

"""What examples are made of: keys that go together, with small values that several devices can share.

An architecture's example names its bases and what sets it apart: `{**DENSE, **EXPERTS, "block_count": 4}`.
"""

from collections.abc import Mapping
from typing import Any, Final

from app.architectures.common import NORM_EPSILON, RMS_EPSILON

Example = Mapping[str, Any]

SMALL: Final[Example] = {
    "context_length": 128,
    "embedding_length": 128,
    "block_count": 2,
    "feed_forward_length": 256,
    "attention.head_count": 4,
}
GROUPED: Final[Example] = {**SMALL, "attention.head_count_kv": 2}
DENSE: Final[Example] = {**GROUPED, RMS_EPSILON.key: 1e-5}
LAYER_NORMED: Final[Example] = {**GROUPED, NORM_EPSILON.key: 1e-5}

EXPERTS: Final[Example] = {"expert_feed_forward_length": 256, "expert_count": 4, "expert_used_count": 2}
EXPERTS_AFTER_DENSE: Final[Example] = {**EXPERTS, "leading_dense_block_count": 1, "expert_shared_count": 1}
ROUTED: Final[Example] = {**DENSE, **EXPERTS, "attention.key_length": 32, "attention.value_length": 32}

# latent attention, with the one head of keys and values that is cached
LATENT: Final[Example] = {
    **DENSE,
    "embedding_length": 64,
    "attention.head_count_kv": 1,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 32,
    "attention.value_length_mla": 16,
    "attention.kv_lora_rank": 32,
    "rope.dimension_count": 16,
}
INDEXER: Final[Example] = {
    "attention.indexer.head_count": 2,
    "attention.indexer.key_length": 32,
    "attention.indexer.top_k": 8,
}
STATE_SPACE: Final[Example] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
}

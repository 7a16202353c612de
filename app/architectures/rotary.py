"""Rotary positions: constraints some families put on them."""

from app.architectures.common import bad_value
from app.architectures.hparams import HParams


def full_rotation(hp: HParams) -> HParams:
    """Refuse a partial rotation: this family rotates whole heads. Raises MetadataError bad_value."""
    if hp.n_head[0] and hp.n_rot_full != hp.n_embd_head_k_full:
        raise bad_value(hp.arch, "rope.dimension_count", hp.n_rot_full, f"{hp.n_embd_head_k_full}, the head size")
    return hp

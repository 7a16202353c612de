"""Rotary positions: constraints some families put on them."""

from typing import Final

from app.architectures.common import bad_value
from app.architectures.hparams import Form, HParam, HParams, Kind

ROPE_SECTIONS: Final = HParam("rope.dimension_sections", Kind.I32, form=Form.SECTIONS)


def full_rotation(hp: HParams) -> HParams:
    """Refuse a partial rotation: this family rotates whole heads. Raises MetadataError bad_value."""
    if hp.n_head[0] and hp.n_rot_full != hp.n_embd_head_k_full:
        raise bad_value(hp.arch, "rope.dimension_count", hp.n_rot_full, f"{hp.n_embd_head_k_full}, the head size")
    return hp


def sections(hp: HParams) -> tuple[int, int, int, int]:
    """Rotary dimensions per position axis (time, height, width, extra); zeros where the file has none."""
    value = hp.values[ROPE_SECTIONS.key]
    if isinstance(value, tuple):
        time, height, width, extra = (int(part) for part in value)
        return time, height, width, extra
    assert value is None or isinstance(value, int)
    return (value or 0,) * 4


def uses_mrope(hp: HParams) -> bool:
    """Whether positions have several axes: multimodal files of a family carry sections, text-only ones none."""
    time, height, _, _ = sections(hp)
    return time > 0 and height > 0

"""Roles: every tensor kind once."""

from app.architectures import roles
from app.architectures.roles import Op, Role


def _roles() -> list[Role]:
    return [value for value in vars(roles).values() if isinstance(value, Role)]


def test_labels_are_unique() -> None:
    """No two roles are shown under one label."""
    labels = [role.label for role in _roles()]
    assert len(labels) == len(set(labels))


def test_parts_are_the_same_object_each_time() -> None:
    """A companion is made once, so roles can be compared by identity."""
    assert roles.ATTN_Q.bias is roles.ATTN_Q.part("bias")
    assert roles.ATTN_Q.part("weight") is roles.ATTN_Q
    assert roles.FFN_UP_EXPS.bias.op is Op.ADD_ID
    assert roles.ATTN_Q.bias.op is Op.ADD


def test_names() -> None:
    """A role spells its tensor's name, with the layer where the name has one."""
    assert roles.ATTN_Q.tensor_name(3) == "blk.3.attn_q.weight"
    assert roles.ATTN_Q.bias.tensor_name(3) == "blk.3.attn_q.bias"
    assert roles.SSM_A.tensor_name(0) == "blk.0.ssm_a"
    assert roles.OUTPUT_TIED.tensor_name(None) == "token_embd.weight"
    assert roles.ROPE_FREQS.tensor_name(7) == "rope_freqs.weight"

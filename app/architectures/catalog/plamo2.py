"""PLaMo 2: Mamba layers with a state per head, attention layers with fused QKV, post-norms, gate and up fused."""

from collections.abc import Iterator

from app.architectures import blocks, recurrent, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers_and_width
from app.architectures.examples import DENSE, STATE_SPACE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _derive(hp: HParams) -> HParams:
    return recurrent.recurrent_without_keys(recurrent.with_ssm(hp))


def _mamba(hp: HParams, layer: int) -> Iterator[Expected]:
    inner, state, heads = hp.ssm_d_inner, hp.ssm_d_state, hp.ssm_dt_rank
    rank = max(64, hp.n_embd // 16)
    yield need(roles.SSM_IN, layer, hp.n_embd, 2 * inner)
    yield need(roles.SSM_CONV1D, layer, hp.ssm_d_conv, inner)
    yield need(roles.SSM_X, layer, inner, rank + 2 * state)
    yield need(roles.SSM_DT, layer, rank, heads)
    yield need(roles.SSM_DT.bias, layer, heads)
    yield need(roles.SSM_A, layer, heads)
    yield need(roles.SSM_D.part(""), layer, heads)
    yield need(roles.SSM_OUT, layer, inner, hp.n_embd)
    yield need(roles.SSM_DT_NORM.part(""), layer, rank)
    yield need(roles.SSM_B_NORM.part(""), layer, state)
    yield need(roles.SSM_C_NORM.part(""), layer, state)


def _attention(hp: HParams, layer: int) -> Iterator[Expected]:
    n_head, n_kv, head_k, head_v = hp.n_head[layer], hp.n_head_kv[layer], hp.n_embd_head_k(), hp.n_embd_head_v()
    yield need(roles.ATTN_QKV, layer, hp.n_embd, (n_head + n_kv) * head_k + n_kv * head_v)
    yield need(roles.ATTN_Q_NORM, layer, head_k, n_head)
    yield need(roles.ATTN_K_NORM, layer, head_k, n_kv)
    yield need(roles.ATTN_OUT, layer, n_head * head_v, hp.n_embd)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield from _mamba(hp, layer) if hp.is_recr[layer] else _attention(hp, layer)
        yield need(roles.ATTN_POST_NORM.part(""), layer, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, 2 * hp.n_ff[0])
        yield need(roles.FFN_POST_NORM.part(""), layer, hp.n_embd)


ARCHITECTURE = Architecture(
    name="plamo2",
    capabilities=Capabilities(tensor_split=False, hybrid=True),
    hparams=(RMS_EPSILON, *recurrent.GROUPED_SSM_KEYS),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers_and_width({(32, 2048): "2B", (32, 4096): "8B"}, {16: "1B"}),
    example={
        **DENSE,
        **STATE_SPACE,
        "embedding_length": 64,
        "attention.head_count_kv": [0, 2],
        "attention.key_length": 16,
        "attention.value_length": 16,
        "ssm.group_count": 1,
    },
)

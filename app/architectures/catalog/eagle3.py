"""EAGLE 3: a draft of one layer, over its target's hidden states joined with the embedding of the last token."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.dflash import draft_map, draft_vocabulary
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, Capabilities
from app.architectures.examples import DENSE
from app.architectures.hparams import Form, HParam, HParams, Kind
from app.architectures.manifest import Expected, Names

_TARGET_LAYERS, _TARGET_WIDTH = "target_layers", "target_hidden_size"
_NORM_BEFORE_FC = "norm_before_fc"
_N_TARGETS = 3


def _derive(hp: HParams) -> HParams:
    count = len(hp.array(_TARGET_LAYERS) or ())
    if count != _N_TARGETS:
        raise bad_value(hp.arch, _TARGET_LAYERS, count, f"{_N_TARGETS} layers of the target")
    return hp


def _own_embedding(hp: HParams, names: Names) -> Iterator[Expected]:
    """An embedding of the draft's own, for as many tokens as it has rows."""
    found = names.get(roles.TOKEN_EMBD.tensor_name())
    if found is not None:
        yield need(roles.TOKEN_EMBD, None, hp.n_embd, found.shape[1] if len(found.shape) > 1 else 1)


def _layer(hp: HParams, layer: int) -> Iterator[Expected]:
    n_q, joined = hp.n_embd_head_k() * hp.n_head[0], 2 * hp.n_embd
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield need(roles.ATTN_NORM_2, layer, hp.n_embd)
    yield need(roles.ATTN_Q, layer, joined, n_q)
    yield need(roles.ATTN_K, layer, joined, hp.n_embd_k_gqa())
    yield need(roles.ATTN_V, layer, joined, hp.n_embd_v_gqa())
    yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
    yield need(roles.FFN_NORM, layer, hp.n_embd)
    yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
    yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FREQS)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    fused = _N_TARGETS * hp.u32(_TARGET_WIDTH)
    yield from draft_map(hp, names)
    yield need(roles.FC, None, fused, hp.n_embd)
    if hp.u32(_NORM_BEFORE_FC):
        yield need(roles.ENC_OUTPUT_NORM, None, fused)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield may(roles.OUTPUT, None, hp.n_embd, draft_vocabulary(hp, names))
    yield from _own_embedding(hp, names)
    for layer in range(hp.n_layer):
        yield from _layer(hp, layer)


ARCHITECTURE = Architecture(
    name="eagle3",
    capabilities=Capabilities(encoder=True, draft=True),
    hparams=(
        RMS_EPSILON,
        HParam(_TARGET_LAYERS, Kind.I32, Form.ARRAY, required=True),
        HParam(_TARGET_WIDTH, required=True),
        HParam("norm_before_residual", Kind.BOOL),
        HParam(_NORM_BEFORE_FC, Kind.BOOL, default=False),
    ),
    derive=_derive,
    manifest=_manifest,
    example={**DENSE, "block_count": 1, "target_layers": [1, 2, 3], "target_hidden_size": 64},
)

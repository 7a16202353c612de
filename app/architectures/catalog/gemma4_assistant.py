"""Gemma 4's assistant: a draft whose few layers query the keys and values of the model it drafts for."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog import gemma4
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import Architecture, Capabilities
from app.architectures.hparams import HParam, HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import no_memory
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_LAYERS, window_as_listed

_ORDERING = roles.MASKED_EMBD_ORDERING.part("")


def _derive(hp: HParams) -> HParams:
    hp = window_as_listed(replace(hp, n_embd_inp_impl=hp.n_embd_out))
    gemma4.require_equal_heads(hp)
    if hp.n_embd_out == hp.n_embd:
        expected = "the embedding length of the model it drafts for, which is not its own"
        raise bad_value(hp.arch, "embedding_length_out", hp.n_embd_out, expected)
    return hp


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    n_layer, n_target = hp.n_layer_nextn, hp.n_embd_inp
    tables = gemma4.full_rotary_tables(hp, n_layer)
    yield from blocks.embedding(hp)
    yield blocks.embedding_as_output(hp)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    # nothing uses them, and the reference knows them only with a single element
    yield may(roles.MASKED_EMBD_CENTROIDS, None)
    yield may(_ORDERING, None)
    yield need(roles.NEXTN_PROJ_POST, None, hp.n_embd, n_target)
    for layer in range(n_layer):
        n_head_k = hp.n_embd_head_k(layer)
        n_q = n_head_k * hp.n_head[layer]
        if layer == 0:
            yield need(roles.NEXTN_PROJ_PRE, layer, 2 * n_target, hp.n_embd)
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_Q, layer, hp.n_embd, n_q)
        yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)
        yield need(roles.ATTN_Q_NORM, layer, n_head_k)
        yield need(roles.ATTN_POST_NORM, layer, hp.n_embd)
        yield need(roles.LAYER_OUT_SCALE, layer, 1)
        if layer in tables:
            yield tables[layer]
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn_down_last(hp, layer, hp.n_ff[layer])
        yield need(roles.FFN_POST_NORM, layer, hp.n_embd)


ARCHITECTURE = Architecture(
    name="gemma4-assistant",
    capabilities=Capabilities(draft=True),
    hparams=(
        SWA_LAYERS,
        gemma4.SHARED_KV_LAYERS,
        FREQ_BASE_SWA,
        replace(SLIDING_WINDOW, required=True),
        RMS_EPSILON,
        HParam("attention.key_length_swa", required=True),
        HParam("attention.value_length_swa", required=True),
    ),
    derive=_derive,
    manifest=_manifest,
    memory=no_memory,  # its layers look at the keys of the model it drafts for
    rope=RopeType.NEOX,
    example={
        **gemma4.ARCHITECTURE.example,
        "block_count": 2,
        "nextn_predict_layers": 2,
        "embedding_length_out": 192,
        "attention.shared_kv_layers": 2,
        "attention.sliding_window_pattern": [True, False],
    },
)

"""T5: an encoder and a decoder with relative positions, the decoder attending to the encoder's output."""

from collections.abc import Iterator

from app.architectures import blocks, encoder, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture, Capabilities
from app.architectures.examples import SMALL
from app.architectures.hparams import HParam, HParams, RopeType
from app.architectures.manifest import Expected, Names

_BUCKETS = HParam("attention.relative_buckets_count", required=True)
RELATIVE_KEYS = (RMS_EPSILON, _BUCKETS)
_DECODER_LAYERS = "decoder_block_count"

_SIZES = {
    (12, 3072): "220M",
    (12, 2048): "250M",
    (24, 4096): "770M",
    (24, 2816): "780M",
    (24, 16384): "3B",
    (24, 5120): "3B",
    (24, 65536): "11B",
    (24, 10240): "11B",
}


def _decoder_layers(hp: HParams) -> int:
    return hp.u32(_DECODER_LAYERS) if hp.given(_DECODER_LAYERS) else hp.n_layer


def _derive(hp: HParams) -> HParams:
    if _decoder_layers(hp) > hp.n_layer_all:
        raise bad_value(
            hp.arch, _DECODER_LAYERS, _decoder_layers(hp), f"at most {hp.n_layer_all}, the encoder's block count"
        )
    return hp


def _decoder_layer(hp: HParams, layer: int) -> Iterator[Expected]:
    n_k, n_v, n_ff = hp.n_embd_k_gqa(), hp.n_embd_v_gqa(), hp.n_ff[0]
    positions = (hp.n_head[0], hp.u32(_BUCKETS.key))
    yield need(roles.DEC_ATTN_NORM, layer, hp.n_embd)
    yield may(roles.DEC_ATTN_REL_B, layer, *positions)
    yield need(roles.DEC_ATTN_Q, layer, hp.n_embd, n_k)
    yield need(roles.DEC_ATTN_K, layer, hp.n_embd, n_k)
    yield need(roles.DEC_ATTN_V, layer, hp.n_embd, n_v)
    yield need(roles.DEC_ATTN_OUT, layer, n_v, hp.n_embd)
    yield need(roles.DEC_CROSS_ATTN_NORM, layer, hp.n_embd)
    yield may(roles.DEC_CROSS_ATTN_REL_B, layer, *positions)
    yield need(roles.DEC_CROSS_ATTN_Q, layer, hp.n_embd, n_k)
    yield need(roles.DEC_CROSS_ATTN_K, layer, hp.n_embd, n_k)
    yield need(roles.DEC_CROSS_ATTN_V, layer, hp.n_embd, n_v)
    yield need(roles.DEC_CROSS_ATTN_OUT, layer, n_v, hp.n_embd)
    yield need(roles.DEC_FFN_NORM, layer, hp.n_embd)
    yield may(roles.DEC_FFN_GATE, layer, hp.n_embd, n_ff)
    yield need(roles.DEC_FFN_DOWN, layer, n_ff, hp.n_embd)
    yield need(roles.DEC_FFN_UP, layer, hp.n_embd, n_ff)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield need(roles.ENC_OUTPUT_NORM, None, hp.n_embd)
    yield need(roles.DEC_OUTPUT_NORM, None, hp.n_embd)
    yield from blocks.output(hp, names, norm=False)
    for layer in range(hp.n_layer):
        yield from encoder.relative_layer(hp, layer)
    for layer in range(_decoder_layers(hp)):
        yield from _decoder_layer(hp, layer)


def _size_name(hp: HParams) -> str:
    if hp.n_layer in (6, 8):
        return "60M" if hp.n_layer == 6 else "80M"
    return _SIZES.get((hp.n_layer, hp.n_ff[0]), UNKNOWN_SIZE)


ARCHITECTURE = Architecture(
    name="t5",
    capabilities=Capabilities(tensor_split=False, encoder=True),
    hparams=(*RELATIVE_KEYS, HParam("decoder_start_token_id"), HParam(_DECODER_LAYERS)),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NONE,
    size_name=_size_name,
    example={
        **SMALL,
        "embedding_length": 64,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.relative_buckets_count": 32,
    },
)

"""GPT-2: learned positions, fused QKV, everything with biases, an ungated feed-forward."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import LAYER_NORMED
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def fused_attention(hp: HParams, layer: int) -> Iterator[Expected]:
    """Norm, fused QKV and output projection, each with its bias."""
    n_qkv = sum(blocks.model_widths(hp))
    yield from blocks.layer_norm(roles.ATTN_NORM, layer, hp.n_embd)
    yield need(roles.ATTN_QKV, layer, hp.n_embd, n_qkv)
    yield need(roles.ATTN_QKV.bias, layer, n_qkv)
    yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
    yield need(roles.ATTN_OUT.bias, layer, hp.n_embd)


def feed_forward(hp: HParams, layer: int) -> Iterator[Expected]:
    """Norm, down and up projection, each with its bias."""
    yield from blocks.layer_norm(roles.FFN_NORM, layer, hp.n_embd)
    yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)
    yield need(roles.FFN_DOWN.bias, layer, hp.n_embd)
    yield need(roles.FFN_UP, layer, hp.n_embd, hp.n_ff[0])
    yield need(roles.FFN_UP.bias, layer, hp.n_ff[0])


def layers(hp: HParams) -> Iterator[Expected]:
    """All layers, which relatives with other ends share."""
    for layer in range(hp.n_layer):
        yield from fused_attention(hp, layer)
        yield from feed_forward(hp, layer)


def tied_output(hp: HParams, names: Names) -> Iterator[Expected]:
    """An output norm with a bias, and an output projection that may be the token embedding again."""
    yield from blocks.layer_norm(roles.OUTPUT_NORM, None, hp.n_embd)
    yield from blocks.output(hp, names, norm=False)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield need(roles.POS_EMBD, None, hp.n_embd, hp.n_ctx_train)
    yield from tied_output(hp, names)
    yield from layers(hp)


ARCHITECTURE = Architecture(
    name="gpt2",
    hparams=(NORM_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NONE,
    size_name=by_layers({12: "0.1B", 24: "0.4B", 36: "0.8B", 48: "1.5B"}),
    example={**LAYER_NORMED},
)

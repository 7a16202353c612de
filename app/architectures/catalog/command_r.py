"""Command R: attention and feed-forward side by side, tied output; the large one norms each head of Q and K."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import LAYER_NORMED
from app.architectures.hparams import HParam, HParams, Kind
from app.architectures.manifest import Expected, Names

_NORMED_HEADS_FROM = 64  # layers


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from tied_ends(hp, names)
    n_q, n_k, n_v = blocks.model_widths(hp)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        if hp.n_layer >= _NORMED_HEADS_FROM:
            yield need(roles.ATTN_Q_NORM, layer, hp.n_embd_head_k(), hp.n_head[0])
            yield need(roles.ATTN_K_NORM, layer, hp.n_embd_head_k(), hp.n_head_kv[0])
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


def tied_ends(hp: HParams, names: Names) -> Iterator[Expected]:
    """The token embedding, the output norm, and the embedding again as output projection."""
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield from blocks.tied(hp, names)


ARCHITECTURE = Architecture(
    name="command-r",
    hparams=(HParam("logit_scale", Kind.F32), NORM_EPSILON),
    manifest=_manifest,
    size_name=by_layers({40: "35B"}),
    example={**LAYER_NORMED},
)

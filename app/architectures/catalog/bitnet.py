"""BitNet b1.58: ternary weights with a scale beside each, norms inside attention and feed-forward."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.roles import Role


def _scaled(role: Role, layer: int, *shape: int) -> Iterator[Expected]:
    yield need(role, layer, *shape)
    yield may(role.scale, layer, 1)


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    width, n_gqa, n_ff = hp.n_embd, hp.n_embd_v_gqa(), hp.n_ff[0]
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, width)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, width)
        yield need(roles.ATTN_SUB_NORM, layer, width)
        yield from _scaled(roles.ATTN_Q, layer, width, width)
        yield from _scaled(roles.ATTN_K, layer, width, n_gqa)
        yield from _scaled(roles.ATTN_V, layer, width, n_gqa)
        yield from _scaled(roles.ATTN_OUT, layer, width, width)
        yield need(roles.FFN_NORM, layer, width)
        yield need(roles.FFN_SUB_NORM, layer, n_ff)
        yield from _scaled(roles.FFN_GATE, layer, width, n_ff)
        yield from _scaled(roles.FFN_DOWN, layer, n_ff, width)
        yield from _scaled(roles.FFN_UP, layer, width, n_ff)


ARCHITECTURE = Architecture(
    name="bitnet",
    capabilities=Capabilities(tensor_split=False),
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({26: "3B"}),
    example={**DENSE, "embedding_length": 64},
)

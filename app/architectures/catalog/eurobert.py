"""EuroBERT: a Llama-like encoder without an output projection."""

from collections.abc import Iterator

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import DENSE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import no_memory


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_gqa = hp.n_embd_v_gqa()
    yield from blocks.embedding(hp)
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, hp.n_embd, n_gqa, n_gqa)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="eurobert",
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    memory=no_memory,
    rope=RopeType.NEOX,
    size_name=by_layers({12: "0.1B"}),
    example={**DENSE, "attention.causal": False},
)

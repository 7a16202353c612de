"""NeoBERT: a deep encoder with pre-norms, fused QKV, gate and up fused."""

from collections.abc import Iterator

from app.architectures import blocks, encoder, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, by_layers
from app.architectures.examples import SMALL
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names
from app.architectures.memory import no_memory


def _manifest(hp: HParams, _names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from encoder.classifier(hp)
    yield need(roles.ENC_OUTPUT_NORM, None, hp.n_embd)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        yield need(roles.ATTN_QKV, layer, hp.n_embd, hp.n_embd + 2 * hp.n_embd_v_gqa())
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield need(roles.FFN_UP, layer, hp.n_embd, 2 * hp.n_ff[0])
        yield need(roles.FFN_DOWN, layer, hp.n_ff[0], hp.n_embd)


ARCHITECTURE = Architecture(
    name="neo-bert",
    hparams=(RMS_EPSILON,),
    manifest=_manifest,
    memory=no_memory,
    size_name=by_layers({28: "250M"}),
    example={**SMALL, "attention.layer_norm_rms_epsilon": 1e-5, "attention.causal": False},
)

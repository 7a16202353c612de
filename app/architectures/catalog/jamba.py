"""Jamba: Mamba layers with norms inside, some attention layers, dense or routed feed-forward in each."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, recurrent, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities
from app.architectures.examples import DENSE, STATE_SPACE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _derive(hp: HParams) -> HParams:
    hp = recurrent.recurrent_without_keys(recurrent.with_ssm(hp))
    recurrent.require_expansion_of_two(hp)
    return hp


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, hp.n_embd)
        if hp.n_head_kv[layer] == 0:
            yield from recurrent.mamba(hp, layer, normed=True)
        else:
            n_gqa = hp.n_embd_v_gqa(layer)
            yield from blocks.qkv(hp, names, layer, hp.n_embd, n_gqa, n_gqa)
            yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from mixture.router(hp, layer, required=False)
        if roles.FFN_GATE_INP.tensor_name(layer) in names:
            yield from blocks.experts(hp, layer, hp.n_ff[0])
        else:
            yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = Architecture(
    name="jamba",
    capabilities=Capabilities(tensor_split=False, hybrid=True),
    hparams=(*recurrent.SSM_KEYS, RMS_EPSILON),
    derive=_derive,
    manifest=_manifest,
    rope=RopeType.NONE,
    example={**DENSE, **STATE_SPACE, "embedding_length": 64, "attention.head_count_kv": [0, 2]},
)

"""Nomic BERT MoE: BERT with rotary positions and routed experts in every second (or n-th) layer."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import encoder, roles
from app.architectures.blocks import need
from app.architectures.catalog.bert import ARCHITECTURE as BERT
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParam, HParams
from app.architectures.manifest import Expected, Names

_PERIOD = "moe_every_n_layers"


def _feed_forward(hp: HParams, layer: int) -> Iterator[Expected]:
    period, n_ff = hp.u32(_PERIOD), hp.n_ff[0]
    if period == 0 or layer % period != 1:
        yield from encoder.ungated_ffn(hp, layer)
        return
    yield need(roles.FFN_UP_EXPS, layer, hp.n_embd, n_ff, hp.n_expert)
    yield need(roles.FFN_DOWN_EXPS, layer, n_ff, hp.n_embd, hp.n_expert)
    yield need(roles.FFN_GATE_INP, layer, hp.n_embd, hp.n_expert)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from encoder.embeddings(hp)
    yield from encoder.embedding_norm(hp)
    for layer in range(hp.n_layer):
        yield from encoder.post_norm_layer(hp, names, layer, _feed_forward(hp, layer))


ARCHITECTURE = replace(
    BERT,
    name="nomic-bert-moe",
    hparams=(*BERT.hparams, HParam(_PERIOD, default=0)),
    manifest=_manifest,
    size_name=by_layers({12: "475M"}),
    example={**BERT.example, "moe_every_n_layers": 2, "expert_count": 4, "expert_used_count": 2},
)

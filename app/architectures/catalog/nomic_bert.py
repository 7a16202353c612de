"""Nomic BERT: BERT with rotary positions and a gated feed-forward."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain

from app.architectures import encoder, roles
from app.architectures.blocks import need
from app.architectures.catalog.bert import ARCHITECTURE as BERT
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from encoder.embeddings(hp)
    yield from encoder.embedding_norm(hp)
    for layer in range(hp.n_layer):
        gate = need(roles.FFN_GATE, layer, hp.n_embd, hp.n_ff[0])
        yield from encoder.post_norm_layer(hp, names, layer, chain(encoder.ungated_ffn(hp, layer), [gate]))


ARCHITECTURE = replace(BERT, name="nomic-bert", manifest=_manifest, size_name=by_layers({12: "137M"}))

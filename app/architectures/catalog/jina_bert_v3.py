"""Jina BERT v3: BERT with rotary positions."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import encoder
from app.architectures.catalog.bert import ARCHITECTURE as BERT
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from encoder.embeddings(hp)
    yield from encoder.embedding_norm(hp)
    for layer in range(hp.n_layer):
        yield from encoder.post_norm_layer(hp, names, layer, encoder.ungated_ffn(hp, layer))


ARCHITECTURE = replace(BERT, name="jina-bert-v3", manifest=_manifest, size_name=by_layers({24: "558M"}))

"""BERT: an encoder with learned positions and post-norms, and an optional classifier."""

from collections.abc import Iterator

from app.architectures import encoder, roles
from app.architectures.blocks import need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.memory import no_memory


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from encoder.embeddings(hp)
    yield need(roles.POS_EMBD, None, hp.n_embd, hp.n_ctx_train)
    yield from encoder.classifier(hp)
    yield from encoder.embedding_norm(hp)
    for layer in range(hp.n_layer):
        yield from encoder.post_norm_layer(hp, names, layer, encoder.ungated_ffn(hp, layer))


def _size_name(hp: HParams) -> str:
    if hp.n_layer == 12:
        return {384: "33M", 768: "109M"}.get(hp.n_embd, UNKNOWN_SIZE)
    return {3: "17M", 6: "22M", 24: "335M"}.get(hp.n_layer, UNKNOWN_SIZE)


ARCHITECTURE = Architecture(
    name="bert",
    hparams=(NORM_EPSILON,),
    derive=encoder.require_token_types,
    manifest=_manifest,
    memory=no_memory,
    rope=RopeType.NEOX,
    size_name=_size_name,
    example={
        "context_length": 128,
        "embedding_length": 128,
        "block_count": 2,
        "feed_forward_length": 256,
        "attention.head_count": 4,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
        "tokenizer.ggml.token_type_count": 2,
    },
)

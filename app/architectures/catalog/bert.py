"""BERT: an encoder with learned positions and post-norms, and an optional classifier."""

from collections.abc import Iterator

from app.architectures import encoder, roles
from app.architectures.blocks import need
from app.architectures.common import NORM_EPSILON
from app.architectures.descriptor import Architecture, by_layers_and_width
from app.architectures.examples import SMALL
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


ARCHITECTURE = Architecture(
    name="bert",
    hparams=(NORM_EPSILON,),
    derive=encoder.require_token_types,
    manifest=_manifest,
    memory=no_memory,
    rope=RopeType.NEOX,
    size_name=by_layers_and_width({(12, 384): "33M", (12, 768): "109M"}, {3: "17M", 6: "22M", 24: "335M"}),
    example={
        **SMALL,
        "attention.layer_norm_epsilon": 1e-12,
        "attention.causal": False,
        "tokenizer.ggml.token_type_count": 2,
    },
)

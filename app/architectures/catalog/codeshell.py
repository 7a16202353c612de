"""CodeShell: GPT-2's feed-forward, rotary positions, and tokens looked up in the output projection if nowhere else."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import may, need
from app.architectures.catalog.gpt2 import ARCHITECTURE as GPT2
from app.architectures.catalog.gpt2 import feed_forward
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    # without an embedding tokens are looked up in the output projection, where that is
    yield may(roles.TOKEN_EMBD, None, hp.n_embd, hp.n_vocab)
    yield from blocks.layer_norm(roles.OUTPUT_NORM, None, hp.n_embd)
    yield need(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)
    n_q, n_k, n_v = blocks.model_widths(hp)
    for layer in range(hp.n_layer):
        yield from blocks.layer_norm(roles.ATTN_NORM, layer, hp.n_embd)
        yield from blocks.qkv(hp, names, layer, n_q, n_k, n_v)
        yield need(roles.ATTN_OUT, layer, hp.n_embd, hp.n_embd)
        yield need(roles.ATTN_OUT.bias, layer, hp.n_embd)
        yield from feed_forward(hp, layer)


ARCHITECTURE = replace(
    GPT2,
    name="codeshell",
    manifest=_manifest,
    rope=RopeType.NEOX,
    size_name=by_layers({42: "7B"}),
)

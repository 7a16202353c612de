"""Nanbeige: Llama's layers run through several times over, each pass with keys and values of its own."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.blocks import need
from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.common import bad_value
from app.architectures.descriptor import unknown_size
from app.architectures.hparams import MAX_LAYERS, HParam, HParams, Kind
from app.architectures.manifest import Expected, Names

_LOOPS = HParam("num_loops", default=1, minimum=1)


def _weight_layers(hp: HParams) -> int:
    """Layers with weights: those of the file, before the passes multiply them."""
    return hp.u32("block_count") - hp.u32("nextn_predict_layers")


def _derive(hp: HParams) -> HParams:
    loops, n_layer = hp.u32(_LOOPS.key), _weight_layers(hp)
    if loops == 1:
        return hp
    if not 0 < n_layer * loops <= MAX_LAYERS or n_layer * loops < hp.n_layer_nextn:
        raise bad_value(hp.arch, _LOOPS.key, loops, f"1 to {MAX_LAYERS // max(n_layer, 1)} passes of {n_layer} layers")

    def repeated(values: tuple[int, ...]) -> tuple[int, ...]:
        return values[:n_layer] * loops

    return replace(
        hp,
        n_layer_all=n_layer * loops,
        n_head=repeated(hp.n_head),
        n_head_kv=repeated(hp.n_head_kv),
        n_ff=repeated(hp.n_ff),
        n_ff_exp=repeated(hp.n_ff_exp),
        n_expert_used=repeated(hp.n_expert_used),
        is_swa=(False,) * (n_layer * loops),
        is_recr=(False,) * (n_layer * loops),
    )


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(_weight_layers(hp)):
        yield from blocks.attention(hp, names, layer, *blocks.head_widths(hp))
        yield from blocks.rotary_factors(layer, hp.n_rot(), roles.ROPE_FREQS)
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])


ARCHITECTURE = replace(
    LLAMA,
    name="nanbeige",
    hparams=(*LLAMA.hparams, _LOOPS, HParam("skip_loop_final_norm", Kind.BOOL)),
    derive=_derive,
    manifest=_manifest,
    size_name=unknown_size,
    example={**LLAMA.example, "num_loops": 2},
)

"""DeepSeek MoE: leading dense layers, then fine-grained routed experts beside shared ones."""

from collections.abc import Iterator

from app.architectures import blocks, mixture, roles
from app.architectures.blocks import need
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import UNKNOWN_SIZE, Architecture
from app.architectures.examples import EXPERTS_AFTER_DENSE, ROUTED
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names

_SIZES = {1408: "16B", 1792: "20B"}


def _size_name(hp: HParams) -> str:
    return _SIZES.get(hp.n_ff_exp[0], UNKNOWN_SIZE)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_ff_exp = hp.n_ff_exp[0]
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield from blocks.attention(hp, names, layer, *blocks.model_widths(hp))
        yield need(roles.FFN_NORM, layer, hp.n_embd)
        if mixture.is_dense(hp, layer):
            yield from blocks.gated_ffn(hp, layer, hp.n_ff[0])
        else:
            yield from mixture.routed(hp, layer, n_ff_exp)
            yield from mixture.shared_expert(hp, layer, n_ff_exp * hp.u32(mixture.SHARED_COUNT.key))


ARCHITECTURE = Architecture(
    name="deepseek",
    hparams=(
        RMS_EPSILON,
        mixture.LEADING_DENSE,
        mixture.EXPERT_FF_REQUIRED,
        mixture.SHARED_COUNT_REQUIRED,
        mixture.WEIGHTS_SCALE,
    ),
    derive=mixture.experts_after_dense,
    manifest=_manifest,
    size_name=_size_name,
    example={**ROUTED, **EXPERTS_AFTER_DENSE},
)

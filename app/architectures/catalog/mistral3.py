"""Ministral 3: Llama's tensors, with a temperature that grows with the position."""

from dataclasses import replace

from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.common import bad_value
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParam, HParams, Kind

_TEMPERATURE = HParam("attention.temperature_scale", Kind.F32)
_ORIGINAL_CONTEXT = "rope.scaling.original_context_length"


def _derive(hp: HParams) -> HParams:
    trained = hp.u32(_ORIGINAL_CONTEXT) if hp.given(_ORIGINAL_CONTEXT) else hp.n_ctx_train
    if hp.number(_TEMPERATURE.key) != 0 and trained == 0:
        raise bad_value(hp.arch, _ORIGINAL_CONTEXT, 0, "at least 1, the attention temperature starts from it")
    return hp


ARCHITECTURE = replace(
    LLAMA,
    name="mistral3",
    hparams=(
        *LLAMA.hparams,
        _TEMPERATURE,
        HParam("rope.scaling.yarn_beta_fast", Kind.F32),
        HParam("rope.scaling.yarn_beta_slow", Kind.F32),
        HParam("rope.scaling.yarn_log_multiplier", Kind.F32),
    ),
    derive=_derive,
    size_name=by_layers({26: "3B", 34: "8B", 40: "14B"}),
)

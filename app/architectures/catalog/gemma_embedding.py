"""EmbeddingGemma: Gemma 3's layers looking both ways within a symmetric window, dense heads behind them."""

from dataclasses import replace

from app.architectures.catalog.gemma3 import ARCHITECTURE as GEMMA3
from app.architectures.catalog.gemma3 import DENSE_2_OUT, DENSE_3_IN
from app.architectures.common import RMS_EPSILON, bad_value
from app.architectures.descriptor import by_layers, without_causality
from app.architectures.hparams import HParam, HParams, SwaType
from app.architectures.memory import no_memory
from app.architectures.window import FREQ_BASE_SWA, SLIDING_WINDOW, SWA_PATTERN, with_window

_DENSE_2_IN = HParam("dense_2_feat_in")
_DENSE_3_OUT = HParam("dense_3_feat_out")


def _derive(hp: HParams) -> HParams:
    for param in (_DENSE_2_IN, _DENSE_3_OUT):
        if hp.u32(param.key) not in (0, hp.n_embd):
            raise bad_value(hp.arch, param.key, hp.u32(param.key), f"{hp.n_embd}, the embedding length")
    return without_causality(with_window(hp, SwaType.SYMMETRIC, hp.u32(SLIDING_WINDOW.key), period=6))


ARCHITECTURE = replace(
    GEMMA3,
    name="gemma-embedding",
    hparams=(
        SWA_PATTERN,
        FREQ_BASE_SWA,
        replace(SLIDING_WINDOW, required=True),
        RMS_EPSILON,
        _DENSE_2_IN,
        DENSE_2_OUT,
        DENSE_3_IN,
        _DENSE_3_OUT,
    ),
    derive=_derive,
    memory=no_memory,
    size_name=by_layers({24: "0.3B"}),
)

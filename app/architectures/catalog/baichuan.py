"""Baichuan: InternLM2's tensors; the 13B has linear position biases where the 7B has rotary positions."""

from dataclasses import replace

from app.architectures.catalog.internlm2 import ARCHITECTURE as INTERNLM2
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams


def _derive(hp: HParams) -> HParams:
    return replace(hp, use_alibi=hp.n_layer == 40)


ARCHITECTURE = replace(INTERNLM2, name="baichuan", derive=_derive, size_name=by_layers({32: "7B", 40: "13B"}))

"""Refact: Llama's tensors with linear position biases in place of rotary positions."""

from dataclasses import replace

from app.architectures.catalog.llama import ARCHITECTURE as LLAMA
from app.architectures.descriptor import by_layers
from app.architectures.hparams import HParams, RopeType


def _derive(hp: HParams) -> HParams:
    return replace(hp, use_alibi=True)


ARCHITECTURE = replace(LLAMA, name="refact", derive=_derive, rope=RopeType.NONE, size_name=by_layers({32: "1B"}))

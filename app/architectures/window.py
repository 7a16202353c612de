"""Sliding windows: which layers have one, as files and families say it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from app.architectures.hparams import Form, HParam, HParams, Kind, SwaType, layers_where

SLIDING_WINDOW: Final = HParam("attention.sliding_window")
SWA_PATTERN: Final = HParam("attention.sliding_window_pattern", form=Form.EITHER)
SWA_LAYERS: Final = HParam("attention.sliding_window_pattern", form=Form.ARRAY, required=True)
FREQ_BASE_SWA: Final = HParam("rope.freq_base_swa", Kind.F32)


def with_window(hp: HParams, swa_type: SwaType, n_swa: int, *, period: int, dense_first: bool = False) -> HParams:
    """A window of `n_swa` tokens on the layers the file's pattern names, or on all but every `period`-th.

    `attention.sliding_window_pattern` may be an array with a flag per layer, or a period that replaces the family's.
    """
    flags = hp.array(SWA_PATTERN.key)
    if flags is not None:
        return given_window(hp, swa_type, n_swa, flags)
    if hp.given(SWA_PATTERN.key):
        period = hp.u32(SWA_PATTERN.key)
    layers = layers_where(hp.n_layer, hp.n_layer_all, period, dense_first=dense_first)
    return replace(hp, swa_type=swa_type, n_swa=n_swa, is_swa=layers)


def optional_window(hp: HParams, *, period: int, dense_first: bool = False) -> HParams:
    """A window of the file's own length on the layers of its pattern or the family's period; none without a length."""
    n_swa = hp.u32(SLIDING_WINDOW.key)
    return with_window(hp, SwaType.STANDARD, n_swa, period=period, dense_first=dense_first) if n_swa else hp


def window_as_listed(hp: HParams) -> HParams:
    """A window of the file's own length on the layers it lists (`SWA_LAYERS`)."""
    return given_window(hp, SwaType.STANDARD, hp.u32(SLIDING_WINDOW.key), hp.array(SWA_LAYERS.key) or ())


def given_window(hp: HParams, swa_type: SwaType, n_swa: int, flags: Sequence[int]) -> HParams:
    """A window of `n_swa` tokens on the layers with a set flag; layers beyond the flags have none."""
    padded = (*flags, *([0] * hp.n_layer_all))[: hp.n_layer_all]
    return replace(hp, swa_type=swa_type, n_swa=n_swa, is_swa=tuple(bool(flag) for flag in padded))

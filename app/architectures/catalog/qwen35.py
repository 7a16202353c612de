"""Qwen3.5: gated delta-rule layers with V on the scale of K, every fourth layer full attention with a Q gate."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain

from app.architectures import blocks, recurrent, roles, rotary
from app.architectures.blocks import tensor
from app.architectures.catalog.qwen3next import gated_attention
from app.architectures.common import RMS_EPSILON
from app.architectures.descriptor import Architecture, Capabilities, by_layers_and_width
from app.architectures.examples import DENSE, STATE_SPACE
from app.architectures.hparams import HParams, RopeType
from app.architectures.manifest import Expected, Names
from app.architectures.recurrent_memory import trunk_hybrid

ROPE_SECTIONS = replace(rotary.ROPE_SECTIONS, required=True)

FeedForward = Callable[[HParams, Names, int, bool], Iterator[Expected]]


def _derive(hp: HParams) -> HParams:
    return recurrent.recurrent_by_interval(recurrent.with_ssm(hp))


def _norms(hp: HParams, layer: int, required: bool) -> Iterator[Expected]:
    yield tensor(roles.ATTN_NORM, layer, hp.n_embd, required=required)
    yield tensor(roles.ATTN_POST_NORM, layer, hp.n_embd, required=required)


def model(hp: HParams, names: Names, feed_forward: FeedForward) -> Iterator[Expected]:
    """The whole model around a feed-forward of the family's own."""
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    required = not blocks.trunk_is_missing(hp, names)
    for layer in range(hp.n_layer):
        yield from _norms(hp, layer, required)
        if hp.is_recr[layer]:
            yield from recurrent.delta_rule(hp, layer, required=required)
        else:
            yield from gated_attention(hp, names, layer, required=required)
        yield from feed_forward(hp, names, layer, required)
    for layer in range(hp.n_layer, hp.n_layer_all):
        nextn = chain(
            _norms(hp, layer, True),
            gated_attention(hp, names, layer),
            feed_forward(hp, names, layer, True),
            blocks.nextn_head(hp, layer),
        )
        yield from blocks.nextn_unused(nextn, present=True)


def _feed_forward(hp: HParams, _names: Names, layer: int, required: bool) -> Iterator[Expected]:
    yield from blocks.gated_ffn(hp, layer, hp.n_ff[0], required=required)


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    yield from model(hp, names, _feed_forward)


ARCHITECTURE = Architecture(
    name="qwen35",
    capabilities=Capabilities(hybrid=True, q_gate=True, linear_attention=True, v_follows_k=True),
    hparams=(
        RMS_EPSILON,
        ROPE_SECTIONS,
        *recurrent.GROUPED_SSM_KEYS,
        recurrent.RECURRENT_LAYERS,
        recurrent.FULL_ATTENTION_INTERVAL,
    ),
    derive=_derive,
    manifest=_manifest,
    memory=trunk_hybrid,
    rope=RopeType.IMROPE,
    size_name=by_layers_and_width({(24, 1024): "0.8B", (32, 2560): "4B"}, {24: "2B", 32: "9B", 64: "27B"}),
    example={
        **DENSE,
        **STATE_SPACE,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "rope.dimension_sections": [4, 4, 4, 0],
        "ssm.inner_size": 256,
        "ssm.state_size": 64,
        "ssm.group_count": 2,
        "full_attention_interval": 2,
    },
)

"""Granite Switch: Granite with a stack of embedded adapters, one of which a router of its own layer switches on."""

from collections.abc import Iterator
from dataclasses import replace

from app.architectures import blocks, roles
from app.architectures.attention_memory import every_layer, standard_attention
from app.architectures.blocks import need
from app.architectures.catalog.granite import ARCHITECTURE as GRANITE
from app.architectures.catalog.granite import SCALES
from app.architectures.common import bad_value
from app.architectures.descriptor import by_layers_and_width
from app.architectures.hparams import MAX_LAYERS, Form, HParam, HParams, Kind
from app.architectures.manifest import Expected, Names
from app.architectures.memory import CacheTensor, MemoryRequest
from app.architectures.roles import Role

_MOST = 4096
_COUNT = HParam("adapters.count", required=True, maximum=_MOST)
_RANK = HParam("adapters.lora_rank", required=True, maximum=_MOST)
_ACTIVATE = HParam("adapters.token_ids_activate", Kind.I32, form=Form.LIST, required=True)
_SUBSTITUTE = HParam("adapters.token_ids_substitute", Kind.I32, form=Form.LIST, required=True)


def _derive(hp: HParams) -> HParams:
    n_adapters = hp.u32(_COUNT.key)
    activate, substitute = hp.array(_ACTIVATE.key) or (), hp.array(_SUBSTITUTE.key) or ()
    for param, ids in ((_ACTIVATE, activate), (_SUBSTITUTE, substitute)):
        if len(ids) != n_adapters:
            raise bad_value(hp.arch, param.key, f"{len(ids)} tokens", f"{n_adapters}, one per adapter")
    # where two adapters share a token the later one counts
    for token in dict(zip(activate, substitute, strict=True)).values():
        if not 0 <= token < hp.n_vocab:
            raise bad_value(hp.arch, _SUBSTITUTE.key, token, f"a token below {hp.n_vocab}")
    return _with_router(hp)


def _with_router(hp: HParams) -> HParams:
    """The router's keys and values are one further layer with a single head and no weights, kept as a NextN layer."""
    n_layer = hp.n_layer
    if n_layer >= MAX_LAYERS:
        raise bad_value(hp.arch, "block_count", n_layer, f"below {MAX_LAYERS}: the router needs a layer")

    def then(values: tuple[int, ...], last: int) -> tuple[int, ...]:
        return (*values[:n_layer], last)

    return replace(
        hp,
        n_layer_all=n_layer + 1,
        n_layer_nextn=1,
        n_head=then(hp.n_head, 1),
        n_head_kv=then(hp.n_head_kv, 1),
        n_ff=then(hp.n_ff, 0),
        n_ff_exp=then(hp.n_ff_exp, 0),
        n_expert_used=then(hp.n_expert_used, 0),
        is_swa=(False,) * (n_layer + 1),
        is_recr=(False,) * (n_layer + 1),
    )


def _manifest(hp: HParams, names: Names) -> Iterator[Expected]:
    n_embd, n_ff = hp.n_embd, hp.n_ff[0]
    n_q, n_kv, _ = blocks.head_widths(hp)
    yield from blocks.embedding(hp)
    yield from blocks.output(hp, names)
    for layer in range(hp.n_layer):
        yield need(roles.ATTN_NORM, layer, n_embd)
        yield need(roles.ATTN_QKV, layer, n_embd, n_q + 2 * n_kv)
        yield need(roles.ATTN_OUT, layer, n_q, n_embd)
        yield need(roles.FFN_NORM, layer, n_embd)
        yield from blocks.gated_ffn(hp, layer, n_ff)
        yield from _adapters(hp, roles.ATTN_Q, layer, n_embd, n_q)
        yield from _adapters(hp, roles.ATTN_K, layer, n_embd, n_kv)
        yield from _adapters(hp, roles.ATTN_V, layer, n_embd, n_kv)
        yield from _adapters(hp, roles.ATTN_OUT, layer, n_q, n_embd)
        yield from _adapters(hp, roles.FFN_GATE, layer, n_embd, n_ff)
        yield from _adapters(hp, roles.FFN_UP, layer, n_embd, n_ff)
        yield from _adapters(hp, roles.FFN_DOWN, layer, n_ff, n_embd)


def _adapters(hp: HParams, role: Role, layer: int, n_in: int, n_out: int) -> Iterator[Expected]:
    """Both halves of every adapter of one projection, stacked; the first of the stack changes nothing."""
    rank, stack = hp.u32(_RANK.key), hp.u32(_COUNT.key) + 1
    yield need(role.part("lora_a"), layer, n_in, rank, stack)
    yield need(role.part("lora_b"), layer, rank, n_out, stack)


def _memory(hp: HParams, request: MemoryRequest) -> Iterator[CacheTensor]:
    """The router's layer is attended to by the trunk, and so remembered."""
    return standard_attention(hp, request, layers=every_layer(hp))


ARCHITECTURE = replace(
    GRANITE,
    name="graniteswitch",
    hparams=(*SCALES, _COUNT, _RANK, HParam("adapters.router_gain", Kind.F32), _ACTIVATE, _SUBSTITUTE),
    derive=_derive,
    manifest=_manifest,
    memory=_memory,
    size_name=by_layers_and_width({(40, 4096): "8B"}, {40: "3B", 64: "30B"}),
    example={
        **GRANITE.example,
        "adapters.count": 2,
        "adapters.lora_rank": 8,
        "adapters.token_ids_activate": [1, 2],
        "adapters.token_ids_substitute": [3, 4],
    },
)

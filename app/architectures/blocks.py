"""Fragments of manifests that several families share.

Each yields `Expected` tensors in the reference's order. Shapes are in GGUF order: a projection from `a` to `b` is
`(a, b)`.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps

from app.architectures import roles
from app.architectures.hparams import HParams
from app.architectures.manifest import Expected, Names
from app.architectures.roles import Role
from app.ggml import BY_NAME

Manifest = Callable[[HParams, Names], Iterator[Expected]]


def need(role: Role, layer: int | None, *shape: int) -> Expected:
    """A tensor without which the model does not load."""
    return Expected(role=role, layer=layer, shape=shape)


def may(role: Role, layer: int | None, *shape: int) -> Expected:
    """A tensor the model may do without."""
    return Expected(role=role, layer=layer, shape=shape, required=False)


def tensor(role: Role, layer: int | None, *shape: int, required: bool) -> Expected:
    """A tensor that is required if `required`."""
    return Expected(role=role, layer=layer, shape=shape, required=required)


def embedding(hp: HParams) -> Iterator[Expected]:
    """The token embedding."""
    yield need(roles.TOKEN_EMBD, None, hp.n_embd, hp.n_vocab)


def output(hp: HParams, names: Names, *, norm: bool = True) -> Iterator[Expected]:
    """The output norm and an output projection that may be the token embedding again."""
    if norm:
        yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield may(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)
    yield from tied(hp, names)


def tied(hp: HParams, names: Names) -> Iterator[Expected]:
    """The token embedding as output projection, where there is none of its own."""
    if roles.OUTPUT.tensor_name() not in names:
        yield embedding_as_output(hp)


def embedding_as_output(hp: HParams) -> Expected:
    """The token embedding used again as output projection."""
    return Expected(role=roles.OUTPUT_TIED, layer=None, shape=(hp.n_embd, hp.n_vocab), copy=True)


def untied_output(hp: HParams) -> Iterator[Expected]:
    """The output norm and an output projection of its own."""
    yield need(roles.OUTPUT_NORM, None, hp.n_embd)
    yield need(roles.OUTPUT, None, hp.n_embd, hp.n_vocab)


def qkv(
    hp: HParams, names: Names, layer: int, n_q: int, n_k: int, n_v: int, *, required: bool = True
) -> Iterator[Expected]:
    """Query, key and value projections, fused or apart, with their optional biases.

    A fused weight with separate biases is accepted, as in the reference.
    """
    fused = roles.ATTN_QKV
    yield may(fused, layer, hp.n_embd, n_q + n_k + n_v)
    biases = (
        may(roles.ATTN_Q.bias, layer, n_q),
        may(roles.ATTN_K.bias, layer, n_k),
        may(roles.ATTN_V.bias, layer, n_v),
    )
    if fused.tensor_name(layer) in names:
        yield may(fused.bias, layer, n_q + n_k + n_v)
        if fused.bias.tensor_name(layer) not in names:
            yield from biases
        return
    for role, width in ((roles.ATTN_Q, n_q), (roles.ATTN_K, n_k), (roles.ATTN_V, n_v)):
        yield Expected(role=role, layer=layer, shape=(hp.n_embd, width), required=required, fused=fused)
    yield from biases


def norms(layer: int, width: int, *of: Role) -> Iterator[Expected]:
    """Norms of one width, in the given order."""
    for role in of:
        yield need(role, layer, width)


def attention(
    hp: HParams, names: Names, layer: int, n_q: int, n_k: int, n_v: int, *, required: bool = True
) -> Iterator[Expected]:
    """Norm, Q, K and V (fused or apart, with optional biases) and an output projection from Q's width.

    `required` speaks of Q, K and V; the others are.
    """
    yield need(roles.ATTN_NORM, layer, hp.n_embd)
    yield from qkv(hp, names, layer, n_q, n_k, n_v, required=required)
    yield need(roles.ATTN_OUT, layer, n_q, hp.n_embd)


def layer_norm(role: Role, layer: int | None, width: int, *, required: bool = True) -> Iterator[Expected]:
    """A norm that scales and shifts: weight and bias."""
    yield tensor(role, layer, width, required=required)
    yield tensor(role.bias, layer, width, required=required)


def head_widths(hp: HParams) -> tuple[int, int, int]:
    """Widths of Q, K and V as the heads of the first layer make them."""
    return hp.n_embd_head_k() * hp.n_head[0], hp.n_embd_k_gqa(), hp.n_embd_v_gqa()


def model_widths(hp: HParams) -> tuple[int, int, int]:
    """Widths of Q, K and V where Q is as wide as the model, and K as wide as V."""
    return hp.n_embd, hp.n_embd_v_gqa(), hp.n_embd_v_gqa()


def equal_kv_widths(hp: HParams) -> tuple[int, int, int]:
    """Widths of Q, K and V where Q follows its heads, and K is as wide as V."""
    return hp.n_embd_head_k() * hp.n_head[0], hp.n_embd_v_gqa(), hp.n_embd_v_gqa()


def rotary_factors(layer: int, n_rot: int, *factors: Role) -> Iterator[Expected]:
    """Model-level rotary tables used by every layer: the first layer's is the tensor, the others' are copies of it."""
    for role in factors:
        yield Expected(role=role, layer=layer, shape=(n_rot // 2,), required=False, copy=layer != 0)


def rotary_tables(hp: HParams, layer: int, n_rot: int | None = None) -> Iterator[Expected]:
    """The rotary tables a model's scaling asks for: long and short factors with LongRoPE, else frequencies.

    They are made for `n_rot` dimensions, or those of the first layer.
    """
    width = hp.n_rot() if n_rot is None else n_rot
    if hp.rope_scaling_type == "longrope":
        yield from rotary_factors(layer, width, roles.ROPE_FACTORS_LONG, roles.ROPE_FACTORS_SHORT)
    else:
        yield from rotary_factors(layer, width, roles.ROPE_FREQS)


def gated_ffn(hp: HParams, layer: int, n_ff: int, *, required: bool = True) -> Iterator[Expected]:
    """A gated feed-forward: gate, down, up."""
    yield tensor(roles.FFN_GATE, layer, hp.n_embd, n_ff, required=required)
    yield tensor(roles.FFN_DOWN, layer, n_ff, hp.n_embd, required=required)
    yield tensor(roles.FFN_UP, layer, hp.n_embd, n_ff, required=required)


def gated_ffn_down_last(hp: HParams, layer: int, n_ff: int) -> Iterator[Expected]:
    """A gated feed-forward in the order gate, up, down."""
    gate, down, up = gated_ffn(hp, layer, n_ff)
    yield from (gate, up, down)


def experts(hp: HParams, layer: int, n_ff_exp: int, *, required: bool = True) -> Iterator[Expected]:
    """Routed experts: gate, down, up, one matrix per expert along the third axis."""
    shape_in, shape_out = (hp.n_embd, n_ff_exp, hp.n_expert), (n_ff_exp, hp.n_embd, hp.n_expert)
    yield tensor(roles.FFN_GATE_EXPS, layer, *shape_in, required=required)
    yield tensor(roles.FFN_DOWN_EXPS, layer, *shape_out, required=required)
    yield tensor(roles.FFN_UP_EXPS, layer, *shape_in, required=required)


def optional(expected: Iterable[Expected]) -> Iterator[Expected]:
    """The same tensors, none of them required."""
    for item in expected:
        yield item._replace(required=False)


def required_if(condition: bool, expected: Iterable[Expected]) -> Iterator[Expected]:
    """The same tensors, none of them required unless `condition` holds."""
    yield from expected if condition else optional(expected)


def fused_experts(hp: HParams, names: Names, layer: int, n_ff_exp: int, *, required: bool = True) -> Iterator[Expected]:
    """Gate and up of routed experts, fused in one tensor or apart."""
    fused = roles.FFN_GATE_UP_EXPS
    yield may(fused, layer, hp.n_embd, 2 * n_ff_exp, hp.n_expert)
    if fused.tensor_name(layer) not in names:
        for role in (roles.FFN_GATE_EXPS, roles.FFN_UP_EXPS):
            shape = (hp.n_embd, n_ff_exp, hp.n_expert)
            yield Expected(role=role, layer=layer, shape=shape, required=required, fused=fused)


def nextn_unused(expected: Iterable[Expected], *, present: bool) -> Iterator[Expected]:
    """NextN (multi-token prediction) tensors: they draft for this very model, are known, and are never loaded here.

    `present`: the file carries NextN layers at all; then what each needs must be there, used or not.
    """
    for item in expected:
        yield item._replace(required=item.required and present, unused=True)


def trunk_is_missing(hp: HParams, names: Names) -> bool:
    """Whether the file holds only the NextN layers of a model: then nothing of the trunk is required."""
    return hp.n_layer_nextn > 0 and roles.ATTN_NORM.tensor_name(0) not in names


def nextn_head(hp: HParams, layer: int) -> Iterator[Expected]:
    """What makes a block a NextN (multi-token prediction) block: the joining projection, its norms, optional heads."""
    yield from nextn_joint(hp, layer)
    yield from nextn_tables(hp, layer)


def nextn_joint(hp: HParams, layer: int) -> Iterator[Expected]:
    """Where a NextN block joins the next token's embedding to the trunk's output: a projection and two norms."""
    yield need(roles.NEXTN_EH_PROJ, layer, 2 * hp.n_embd, hp.n_embd)
    yield need(roles.NEXTN_ENORM, layer, hp.n_embd)
    yield need(roles.NEXTN_HNORM, layer, hp.n_embd)


def nextn_tables(hp: HParams, layer: int) -> Iterator[Expected]:
    """The embedding and the head that a NextN block may have for itself."""
    yield may(roles.NEXTN_EMBED_TOKENS, layer, hp.n_embd, hp.n_vocab)
    yield may(roles.NEXTN_SHARED_HEAD_HEAD, layer, hp.n_embd, hp.n_vocab)
    yield may(roles.NEXTN_SHARED_HEAD_NORM, layer, hp.n_embd)


_SCALED = (
    roles.ATTN_Q,
    roles.ATTN_K,
    roles.ATTN_V,
    roles.ATTN_OUT,
    roles.ATTN_QKV,
    roles.ATTN_GATE,
    roles.FFN_GATE,
    roles.FFN_DOWN,
    roles.FFN_UP,
    roles.FFN_GATE_SHEXP,
    roles.FFN_DOWN_SHEXP,
    roles.FFN_UP_SHEXP,
    roles.FFN_GATE_EXPS,
    roles.FFN_DOWN_EXPS,
    roles.FFN_UP_EXPS,
    roles.SSM_IN,
    roles.SSM_OUT,
    roles.SSM_ALPHA,
    roles.SSM_BETA,
    roles.NEXTN_EH_PROJ,
    roles.NEXTN_SHARED_HEAD_HEAD,
)
_PER_EXPERT = frozenset({roles.FFN_GATE_EXPS, roles.FFN_DOWN_EXPS, roles.FFN_UP_EXPS})


def with_scales(manifest: Manifest) -> Manifest:
    """A manifest followed by the optional `.scale` and `.input_scale` beside each weight it has.

    Every architecture may carry them (NVFP4 files); the output's only beside an NVFP4 output.
    """

    @wraps(manifest)
    def extended(hp: HParams, names: Names) -> Iterator[Expected]:
        if not any(name.endswith("scale") for name in names):
            yield from manifest(hp, names)
            return
        weights: set[str] = set()
        own: set[str] = set()
        for expected in manifest(hp, names):
            own.add(expected.name)
            if not expected.unused:
                weights.add(expected.name)
            yield expected
        for layer in range(hp.n_layer_all):
            for suffix in ("scale", "input_scale"):
                for role in _SCALED:
                    weight, companion = role.tensor_name(layer), role.part(suffix)
                    if weight in names and weight in weights and companion.tensor_name(layer) not in own:
                        yield may(companion, layer, hp.n_expert if role in _PER_EXPERT else 1)
        output_weight = names.get(roles.OUTPUT.tensor_name())
        if output_weight is not None and output_weight.type is BY_NAME["nvfp4"]:
            for suffix in ("scale", "input_scale"):
                yield may(roles.OUTPUT.part(suffix), None, 1)

    return extended

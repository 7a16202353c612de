"""The keys every architecture shares, and the derivation that precedes each architecture's own.

The order and the defaults are those of the reference (`llama_model_base::load_hparams`).
"""

from collections.abc import Mapping, Sequence
from typing import Final

from app.architectures.hparams import MAX_EXPERTS, MAX_LAYERS, Form, HParam, HParams, Kind, Value
from app.architectures.reading import read_values
from app.errors import MetadataError
from app.modelfile.types import ArrayValue, KeyValue

ROPE_SCALING_TYPES: Final = ("none", "linear", "yarn", "longrope")

RMS_EPSILON: Final = HParam("attention.layer_norm_rms_epsilon", Kind.F32, required=True)
NORM_EPSILON: Final = HParam("attention.layer_norm_epsilon", Kind.F32, required=True)

_BLOCK_COUNT: Final = HParam("block_count", required=True, minimum=1, maximum=MAX_LAYERS)

_TOKENIZER_MODEL: Final = HParam("ggml.model", Kind.STRING, required=True)
_TOKEN_TYPE_COUNT: Final = HParam("ggml.token_type_count", default=0)

COMMON: Final = (
    HParam("context_length", required=True),
    HParam("embedding_length", required=True),
    HParam("embedding_length_out"),
    HParam("attention.causal", Kind.BOOL, default=True),
    HParam("pooling_type"),
    HParam("classifier.pooling_type"),
    HParam("nextn_predict_layers", default=0),
    HParam("expert_count", default=0, maximum=MAX_EXPERTS),
    HParam("expert_used_count", form=Form.PER_LAYER, default=0),
    HParam("expert_group_count", default=0),
    HParam("expert_group_used_count", default=0),
    HParam("feed_forward_length", form=Form.PER_LAYER, default=0),
    HParam("attention.head_count", form=Form.PER_LAYER, default=0),
    HParam("attention.head_count_kv", form=Form.PER_LAYER),
    HParam("rope.scaling.finetuned", Kind.BOOL),
    HParam("rope.scaling.original_context_length"),
    HParam("rope.freq_base", Kind.F32),
    HParam("rope.scaling.type", Kind.STRING, default="linear", choices=ROPE_SCALING_TYPES),
    HParam("rope.scaling.factor", Kind.F32),
    HParam("rope.scale_linear", Kind.F32),
    HParam("rope.scaling.attn_factor", Kind.F32),
    HParam("rope.scaling.alpha", Kind.F32),
    HParam("attention.key_length"),
    HParam("attention.value_length"),
    HParam("rope.dimension_count"),
    HParam("attention.key_length_swa"),
    HParam("attention.value_length_swa"),
    HParam("rope.dimension_count_swa"),
    HParam("classifier.output_labels", form=Form.LABELS),
)


def resolve_common(
    arch: str, metadata: Mapping[str, KeyValue], own: Sequence[HParam], *, lone_expert_is_dense: bool = False
) -> HParams:
    """The hyperparameters all models have, plus the values of an architecture's `own` keys.

    `lone_expert_is_dense`: fewer than two experts count as none. A key declared again in `own` replaces the common
    declaration (other bounds, required where it was optional). Raises MetadataError: missing_key, wrong_key_type,
    bad_value.
    """
    n_layer_all = _int(read_values(arch, (_BLOCK_COUNT,), metadata, 0)["block_count"])
    values = read_values(arch, _declared(own), metadata, n_layer_all)
    values["block_count"] = n_layer_all

    n_nextn = _int(values["nextn_predict_layers"])
    if n_nextn > n_layer_all:
        raise bad_value(arch, "nextn_predict_layers", n_nextn, f"at most {n_layer_all}, the block count")
    n_head = _ints(values["attention.head_count"])
    kv = values["attention.head_count_kv"]
    n_embd = _int(values["embedding_length"])
    per_head = n_embd // n_head[0] if n_head[0] else 0
    # a model without attention heads has no head sizes, whatever its keys say
    head_k = _or(values["attention.key_length"], per_head) if n_head[0] else 0
    head_v = _or(values["attention.value_length"], per_head) if n_head[0] else 0
    n_rot = _or(values["rope.dimension_count"], head_k) if n_head[0] else 0
    n_expert = _int(values["expert_count"])
    n_expert_used = _ints(values["expert_used_count"])
    if lone_expert_is_dense and n_expert <= 1:
        n_expert, n_expert_used = 0, (0,) * n_layer_all
    _check_experts(arch, n_expert, n_expert_used, values)
    labels = values["classifier.output_labels"]
    return HParams(
        arch=arch,
        values=values,
        n_vocab=count_vocabulary(arch, metadata),
        n_token_types=_token_types(metadata),
        n_ctx_train=_int(values["context_length"]),
        n_embd=n_embd,
        n_layer_all=n_layer_all,
        n_layer_nextn=n_nextn,
        n_expert=n_expert,
        n_expert_used=n_expert_used,
        n_head=n_head,
        n_head_kv=_ints(kv) if kv is not None else n_head,
        n_ff=_ints(values["feed_forward_length"]),
        n_ff_exp=(0,) * n_layer_all,
        n_embd_head_k_full=head_k,
        n_embd_head_v_full=head_v,
        n_embd_head_k_swa=_or(values["attention.key_length_swa"], head_k),
        n_embd_head_v_swa=_or(values["attention.value_length_swa"], head_v),
        n_rot_full=n_rot,
        n_rot_swa=_or(values["rope.dimension_count_swa"], n_rot),
        is_swa=(False,) * n_layer_all,
        is_recr=(False,) * n_layer_all,
        causal_attn=bool(values["attention.causal"]),
        rope_scaling_type=str(values["rope.scaling.type"]),
        n_cls_out=_int(labels) if labels else 1,
        n_embd_out_impl=_or(values["embedding_length_out"], 0),
    )


def key_problems(arch: str, metadata: Mapping[str, KeyValue], own: Sequence[HParam]) -> tuple[MetadataError, ...]:
    """Everything that is wrong with the keys one by one, not only what a load would stumble over first.

    What contradicts another key, or misses because of one, is not among it.
    """
    found: list[MetadataError] = []
    try:
        n_layer_all = _int(read_values(arch, (_BLOCK_COUNT,), metadata, 0)["block_count"])
        declared = _declared(own)
    except MetadataError as error:
        found.append(error)
        n_layer_all, declared = 0, tuple(param for param in _declared(own) if param.form is not Form.PER_LAYER)
    for param in declared:
        try:
            read_values(arch, (param,), metadata, n_layer_all)
        except MetadataError as error:
            found.append(error)
    try:
        count_vocabulary(arch, metadata)
    except MetadataError as error:
        found.append(error)
    return tuple(found)


def declared_keys(own: Sequence[HParam]) -> tuple[HParam, ...]:
    """All keys of an architecture, the number of blocks among them; `own` replace common ones of the same name."""
    return (_BLOCK_COUNT, *_declared(own))


def _declared(own: Sequence[HParam]) -> tuple[HParam, ...]:
    replaced = {param.key for param in own}
    return (*(param for param in COMMON if param.key not in replaced), *own)


def bad_value(arch: str, key: str, found: int | float | str, expected: str) -> MetadataError:
    """The error for a key whose value contradicts another one."""
    return MetadataError(
        f"{arch}.{key} is {found}, expected {expected}",
        code="bad_value",
        key=f"{arch}.{key}",
        expected=expected,
        found=found,
    )


def require(hp: HParams, *keys: str) -> None:
    """Refuse a file without keys that another key makes necessary. Raises MetadataError missing_key."""
    for key in keys:
        if not hp.given(key):
            raise MetadataError(f"{hp.arch}.{key} is missing", code="missing_key", key=f"{hp.arch}.{key}")


def count_vocabulary(arch: str, metadata: Mapping[str, KeyValue]) -> int:
    """Tokens in the vocabulary: the length of the token list, or the declared size where there is no tokenizer."""
    model = read_values("tokenizer", (_TOKENIZER_MODEL,), metadata, 0)[_TOKENIZER_MODEL.key]
    if model in ("none", "no_vocab"):
        return _int(read_values(arch, (HParam("vocab_size", default=0),), metadata, 0)["vocab_size"])
    tokens = metadata.get("tokenizer.ggml.tokens")
    if tokens is None or not isinstance(tokens.value, ArrayValue):
        raise MetadataError(
            f"tokenizer.ggml.tokens is missing, and the tokenizer is {str(model)[:40]!r}",
            code="missing_key",
            key="tokenizer.ggml.tokens",
        )
    return tokens.value.count


def _token_types(metadata: Mapping[str, KeyValue]) -> int:
    return _int(read_values("tokenizer", (_TOKEN_TYPE_COUNT,), metadata, 0)[_TOKEN_TYPE_COUNT.key])


def _check_experts(arch: str, n_expert: int, used: tuple[int, ...], values: Mapping[str, Value | None]) -> None:
    n_groups, most = _int(values["expert_group_count"]), max(used)
    if most > n_expert:
        raise bad_value(arch, "expert_used_count", most, f"at most {n_expert}, {arch}.expert_count")
    if n_expert == 0:
        if n_groups:
            raise bad_value(arch, "expert_group_count", n_groups, f"0, {arch}.expert_count is 0")
        return
    if most == 0:
        raise bad_value(arch, "expert_used_count", 0, f"1 to {n_expert}, {arch}.expert_count")
    if n_groups >= n_expert:
        raise bad_value(arch, "expert_group_count", n_groups, f"fewer than {n_expert}, {arch}.expert_count")
    if n_groups > 1:
        n_used = _int(values["expert_group_used_count"])
        if n_expert % n_groups:
            raise bad_value(arch, "expert_group_count", n_groups, f"a divisor of {n_expert}, {arch}.expert_count")
        if not 0 < n_used < n_groups:
            raise bad_value(
                arch, "expert_group_used_count", n_used, f"1 to {n_groups - 1}, {arch}.expert_group_count less one"
            )


def _int(value: Value | None) -> int:
    assert isinstance(value, int)
    return value


def _or(value: Value | None, otherwise: int) -> int:
    return otherwise if value is None else _int(value)


def _ints(value: Value | None) -> tuple[int, ...]:
    assert isinstance(value, tuple)
    return tuple(int(element) for element in value)

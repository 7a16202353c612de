"""Multi-head latent attention: keys and values expand from one narrow vector, which is what the cache holds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from app.architectures import roles
from app.architectures.blocks import tensor
from app.architectures.common import bad_value
from app.architectures.hparams import Form, HParam, HParams
from app.architectures.manifest import Expected

Q_RANK: Final = HParam("attention.q_lora_rank", default=0)
KV_RANK: Final = HParam("attention.kv_lora_rank", required=True)
KEY_LENGTH: Final = HParam("attention.key_length_mla", default=0)
VALUE_LENGTH: Final = HParam("attention.value_length_mla", default=0)
HEAD_LENGTHS: Final = (replace(KEY_LENGTH, required=True), replace(VALUE_LENGTH, required=True))

INDEXER_KEYS: Final = (
    HParam("attention.indexer.head_count", required=True),
    HParam("attention.indexer.key_length", required=True),
    HParam("attention.indexer.top_k", required=True),
)

# one flag for all layers of the trunk, or one for each: whether the layer has an indexer of its own
INDEXER_TYPES: Final = HParam("attention.indexer.types", form=Form.EITHER)


def own_indexers(hp: HParams, default: Sequence[bool]) -> tuple[bool, ...]:
    """Which layers of the trunk have an indexer of their own, `default` where the file does not say.

    Raises MetadataError bad_value where the file has not one flag per layer.
    """
    flags = hp.array(INDEXER_TYPES.key)
    if flags is None:
        given = hp.given(INDEXER_TYPES.key)
        return (hp.u32(INDEXER_TYPES.key) != 0,) * hp.n_layer if given else tuple(default)
    if len(flags) != hp.n_layer:
        raise bad_value(hp.arch, INDEXER_TYPES.key, len(flags), f"{hp.n_layer} elements, one per layer")
    return tuple(flag != 0 for flag in flags)


def require_unrotated_part(hp: HParams) -> HParams:
    """Refuse latent keys that are rotated as a whole. Raises MetadataError bad_value."""
    latent = sizes(hp, q_rank=0)
    if latent.head_k <= latent.n_rot:
        raise bad_value(hp.arch, "rope.dimension_count", latent.n_rot, f"less than {latent.head_k}, the key length")
    return hp


def with_latent_heads(hp: HParams) -> HParams:
    """The head sizes that K and V have once expanded."""
    return replace(hp, n_embd_head_k_mla=hp.u32(KEY_LENGTH.key), n_embd_head_v_mla=hp.u32(VALUE_LENGTH.key))


def require_latent(hp: HParams) -> HParams:
    """Refuse a model whose keys and values are not latent. Raises MetadataError bad_value."""
    if not hp.is_mla:
        key = VALUE_LENGTH.key if hp.n_embd_head_k_mla else KEY_LENGTH.key
        raise bad_value(hp.arch, key, 0, "at least 1: keys and values expand from a latent vector")
    return hp


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """The sizes of latent attention in one layer. `q_rank` 0: the query is projected at once."""

    n_embd: int
    n_head: int
    head_k: int
    head_v: int
    n_rot: int
    q_rank: int
    kv_rank: int

    def norms(self, layer: int, *, required: bool = True) -> Iterator[Expected]:
        """The norms of the narrow vectors."""
        if self.q_rank:
            yield tensor(roles.ATTN_Q_A_NORM, layer, self.q_rank, required=required)
        yield tensor(roles.ATTN_KV_A_NORM, layer, self.kv_rank, required=required)

    def queries(self, layer: int, *, required: bool = True) -> Iterator[Expected]:
        """The query, in two steps where it has a rank."""
        width = self.n_head * self.head_k
        if self.q_rank:
            yield tensor(roles.ATTN_Q_A, layer, self.n_embd, self.q_rank, required=required)
            yield tensor(roles.ATTN_Q_B, layer, self.q_rank, width, required=required)
        else:
            yield tensor(roles.ATTN_Q, layer, self.n_embd, width, required=required)

    def compressed(self, layer: int, *, required: bool = True) -> Iterator[Expected]:
        """The one narrow vector of K and V, and the rotated part all key heads share."""
        yield tensor(roles.ATTN_KV_A_MQA, layer, self.n_embd, self.kv_rank + self.n_rot, required=required)

    def expanded(self, layer: int, *, required: bool = True) -> Iterator[Expected]:
        """The expansions of K and of V, apart, so that the narrow vector can be cached."""
        yield tensor(roles.ATTN_K_B, layer, self.head_k - self.n_rot, self.kv_rank, self.n_head, required=required)
        yield tensor(roles.ATTN_V_B, layer, self.kv_rank, self.head_v, self.n_head, required=required)

    def fused(self, layer: int, *, required: bool = True) -> Iterator[Expected]:
        """The expansion of K and V in one tensor, as older files have it."""
        width = self.n_head * (self.head_k - self.n_rot + self.head_v)
        yield tensor(roles.ATTN_KV_B, layer, self.kv_rank, width, required=required)

    def output(self, layer: int, *, required: bool = True) -> Iterator[Expected]:
        """The output projection."""
        yield tensor(roles.ATTN_OUT, layer, self.n_head * self.head_v, self.n_embd, required=required)

    def attention(self, layer: int, *, required: bool = True) -> Iterator[Expected]:
        """All of it, with the expansions apart."""
        yield from self.norms(layer, required=required)
        yield from self.queries(layer, required=required)
        yield from self.compressed(layer, required=required)
        yield from self.expanded(layer, required=required)
        yield from self.output(layer, required=required)


def sizes(hp: HParams, *, q_rank: int | None = None) -> Latent:
    """The sizes of a model that is latent in the same way in every layer, with the query's rank as given."""
    return Latent(
        n_embd=hp.n_embd,
        n_head=hp.n_head[0],
        head_k=hp.n_embd_head_k_mla if hp.is_mla else hp.n_embd_head_k(),
        head_v=hp.n_embd_head_v_mla if hp.is_mla else hp.n_embd_head_v(),
        n_rot=hp.n_rot(),
        q_rank=hp.u32(Q_RANK.key) if q_rank is None else q_rank,
        kv_rank=hp.u32(KV_RANK.key),
    )


def indexer(hp: HParams, layer: int, q_rank: int, *, required: bool = True) -> Iterator[Expected]:
    """The indexer that chooses which keys a token attends to; it reads the narrow query of rank `q_rank`."""
    heads, width = hp.u32("attention.indexer.head_count"), hp.u32("attention.indexer.key_length")
    yield tensor(roles.INDEXER_K_NORM, layer, width, required=required)
    yield tensor(roles.INDEXER_K_NORM.bias, layer, width, required=required)
    yield tensor(roles.INDEXER_PROJ, layer, hp.n_embd, heads, required=required)
    yield tensor(roles.INDEXER_ATTN_K, layer, hp.n_embd, width, required=required)
    yield tensor(roles.INDEXER_ATTN_Q_B, layer, q_rank, heads * width, required=required)

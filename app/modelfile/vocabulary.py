"""The tokenizer's arrays, held against each other. Lengths and types are judged from the header, nothing is built.

A loader of weights needs no tokenizer, but a file whose tokenizer can't work is refused when it is loaded, not at the
first request. The rules are the reference's; where it aborts on two equal tokens, a warning is enough here.
"""

from typing import Final, NoReturn

from app.errors import Fact, MetadataError
from app.modelfile.reader import read_strings
from app.modelfile.text import brief, decode, shown
from app.modelfile.types import ArrayValue, KeyValue, ModelFile, ValueType

MODEL: Final = "tokenizer.ggml.model"
PRE: Final = "tokenizer.ggml.pre"
TOKENS: Final = "tokenizer.ggml.tokens"
SCORES: Final = "tokenizer.ggml.scores"
TOKEN_TYPE: Final = "tokenizer.ggml.token_type"  # noqa: S105 - a metadata key, no secret
MERGES: Final = "tokenizer.ggml.merges"
SUPPRESS: Final = "tokenizer.ggml.suppress_tokens"
CHARSMAP: Final = "tokenizer.ggml.precompiled_charsmap"

_NONE: Final = ("none", "no_vocab")
_MERGING: Final = ("gpt2", "hybriddna", "whitespace", "gemma4")
_OTHERS: Final = ("llama", "bert", "t5", "rwkv", "plamo2", "test")
_WITHOUT_MERGES: Final = "kimi-k2"
_SPECIAL: Final = tuple(
    f"tokenizer.ggml.{name}_token_id"
    for name in (
        *("bos", "eos", "eot", "eom", "unknown", "seperator", "padding", "mask"),
        *("fim_pre", "fim_suf", "fim_mid", "fim_pad", "fim_rep", "fim_sep", "prefix", "suffix", "middle"),
    )
)
_FLAGS: Final = tuple(
    f"tokenizer.ggml.{name}"
    for name in (
        *("add_bos_token", "add_eos_token", "add_sep_token", "add_space_prefix", "remove_extra_whitespaces"),
        *("normalizer.lowercase", "normalizer.strip_accents"),
    )
)
_BYTES: Final = (ValueType.U8, ValueType.I8)


def check_vocabulary(model: ModelFile) -> tuple[str, ...]:
    """Refuse a tokenizer whose arrays contradict each other; answers warnings about what is odd and harmless.

    Raises MetadataError: `missing_key` (no tokenizer is named, or it lacks a list), `wrong_key_type`, `bad_tokenizer`.
    """
    return _Tokenizer(model).check()


def duplicate_tokens(model: ModelFile, most_bytes: int | None = None) -> tuple[str, ...]:
    """A warning if tokens occur twice, the first of them named.

    Builds the vocabulary, which takes up to four times as long as reading the header did; none that has more than
    `most_bytes` in the file. Raises FileError if the file is no longer the one that was read.
    """
    tokens = _tokens(model)
    if tokens is None or (most_bytes is not None and tokens.end - tokens.offset > most_bytes):
        return ()
    words = read_strings(model, tokens, 0, tokens.count)
    count = len(words) - len(set(words))
    if count == 0:
        return ()
    first: dict[bytes, int] = {}
    twice = next(index for index, word in enumerate(words) if first.setdefault(word, index) != index)
    word = brief(decode(words[twice]))
    return (f"{TOKENS}: {count} tokens occur before; the first are {first[words[twice]]} and {twice}, both '{word}'",)


def _tokens(model: ModelFile) -> ArrayValue | None:
    entry = model.metadata.get(TOKENS)
    if entry is None or not isinstance(entry.value, ArrayValue) or entry.value.element_type is not ValueType.STRING:
        return None
    return entry.value


class _Tokenizer:
    """One model's tokenizer keys while they are checked."""

    def __init__(self, model: ModelFile) -> None:
        self._metadata = model.metadata
        self._file = shown(model.shards[0].path)
        self._warnings: list[str] = []

    def check(self) -> tuple[str, ...]:
        name = self._text(MODEL)
        if name is None:
            self._fail("missing_key", MODEL, "is missing")
        if name in _NONE:
            return ()
        if name not in (*_MERGING, *_OTHERS):
            self._fail("bad_tokenizer", MODEL, f"'{brief(name)}' is not known", [*_MERGING, *_OTHERS], name[:100])
        if name in _MERGING and self._text(PRE) != _WITHOUT_MERGES:
            self._array(MERGES, (ValueType.STRING,), required=True)
        if name == "t5":
            self._array(CHARSMAP, _BYTES)
        n_tokens = self._array(TOKENS, (ValueType.STRING,), required=True)
        for key, kinds in ((SCORES, (ValueType.F32, ValueType.I32)), (TOKEN_TYPE, (ValueType.I32,))):
            count = self._array(key, kinds)
            if count is not None and count < (n_tokens or 0):
                self._fail("bad_tokenizer", key, f"has {count} entries for {n_tokens} tokens", n_tokens, count)
        self._array(SUPPRESS, (ValueType.I32,))
        for key in _FLAGS:
            self._scalar(key, ValueType.BOOL)
        for key in _SPECIAL:
            entry = self._scalar(key, ValueType.U32)
            if entry is not None and isinstance(entry.value, int) and entry.value >= (n_tokens or 0):
                self._warnings.append(f"{key}: {entry.value} is no token of {n_tokens}; it is ignored")
        return tuple(self._warnings)

    def _text(self, key: str) -> str | None:
        entry = self._scalar(key, ValueType.STRING)
        return str(entry.value) if entry is not None else None

    def _scalar(self, key: str, kind: ValueType) -> KeyValue | None:
        entry = self._metadata.get(key)
        if entry is not None and entry.type is not kind:
            expected, found = kind.name.lower(), _type_of(entry)
            self._fail("wrong_key_type", key, f"is {found}, expected {expected}", expected, found)
        return entry

    def _array(self, key: str, kinds: tuple[ValueType, ...], *, required: bool = False) -> int | None:
        """The array's length; None if it is not there."""
        entry = self._metadata.get(key)
        if entry is None:
            if required:
                self._fail("missing_key", key, "is missing")
            return None
        value = entry.value
        if not isinstance(value, ArrayValue) or value.element_type not in kinds:
            expected, found = " or ".join(f"array of {kind.name.lower()}" for kind in kinds), _type_of(entry)
            self._fail("bad_tokenizer", key, f"is {found}, expected {expected}", expected, found)
        return value.count

    def _fail(self, code: str, key: str, problem: str, expected: Fact = None, found: Fact = None) -> NoReturn:
        raise MetadataError(
            f"{self._file}: metadata '{key}': {problem}",
            code=code,
            file=self._file,
            key=key,
            expected=expected,
            found=found,
        )


def _type_of(entry: KeyValue) -> str:
    value = entry.value
    return f"array of {value.element_type.name.lower()}" if isinstance(value, ArrayValue) else entry.type.name.lower()

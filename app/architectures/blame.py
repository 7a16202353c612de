"""Which keys a disagreement between a file's tensors and its metadata follows from.

A shape is computed from keys, in each architecture's own way. Which ones is found by asking the same architecture
again with one key changed at a time: the keys whose change moves the expectation are those it was computed from. So
no manifest has to keep books, and a new architecture needs none.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final

from app.architectures.hparams import MAX_LAYERS, Form, HParam, HParams, Kind
from app.architectures.manifest import Expected
from app.errors import MetadataError
from app.modelfile.types import ArrayValue, KeyValue, Scalar, ValueType

BUDGET_SECONDS: Final = 0.3  # an explanation may be incomplete, an answer not late
MAX_KEYS: Final = 6
_LENGTHS: Final = (1, 2, 3, 64, 1024)  # tried for an absent key: one of them is not what its absence means

Metadata = Mapping[str, KeyValue]
Manifest = Callable[[HParams], Iterator[Expected]]
Resolve = Callable[[Metadata], HParams]


class Questioned:
    """One model's keys, and how its architecture reads them and makes a manifest of what it read.

    `declared` are the architecture's keys with their full names.
    """

    def __init__(
        self, declared: Iterable[tuple[str, HParam]], metadata: Metadata, resolve: Resolve, manifest: Manifest
    ) -> None:
        self._declared = (*declared, *_VOCABULARY)
        self._metadata = metadata
        self._resolve = resolve
        self._manifest = manifest

    def behind_shape(self, expected: Expected, found: tuple[int, ...]) -> tuple[str, ...]:
        """The keys that the extents of `expected` which are not `found`'s follow from: absent ones first, marked so."""

        def moves(items: Iterator[Expected]) -> bool:
            for item in items:
                if item.name == expected.name and item.copy == expected.copy:
                    return any(was not in (now, has) for was, now, has in _extents(expected.shape, item.shape, found))
            return False

        return self._keys(moves, only_absent=False)

    def behind_absence(self, name: str, *, wanted: bool) -> tuple[str, ...]:
        """The absent keys with which tensor `name` would be required no more (`wanted` False), or known (True)."""

        def moves(items: Iterator[Expected]) -> bool:
            if wanted:
                return any(item.name == name for item in items)
            return not any(item.name == name and item.required for item in items)

        return self._keys(moves, only_absent=True)

    def _keys(self, moves: Callable[[Iterator[Expected]], bool], *, only_absent: bool) -> tuple[str, ...]:
        end = time.monotonic() + BUDGET_SECONDS
        absent: list[str] = []
        present: list[str] = []
        for name, param in self._declared:
            entry = self._metadata.get(name)
            if time.monotonic() > end:
                break
            if entry is not None and only_absent:
                continue
            if any(self._asked(moves, name, other) for other in _others(param, entry, self._n_layer())):
                (absent if entry is None else present).append(f"{name} (absent)" if entry is None else name)
        return tuple((*absent, *present)[:MAX_KEYS])

    def _asked(self, moves: Callable[[Iterator[Expected]], bool], name: str, other: KeyValue) -> bool:
        try:
            return moves(self._manifest(self._resolve({**self._metadata, name: other})))
        except MetadataError:
            return False  # a contradiction is no answer

    def _n_layer(self) -> int:
        """How long an invented list is. The number of blocks is the file's word, and may be any."""
        names = (name for name, param in self._declared if param.key == "block_count")
        found = (self._metadata[name].value for name in names if name in self._metadata)
        return next((min(count, MAX_LAYERS) for count in found if isinstance(count, int)), 1)


# lengths of the vocabulary count as keys: they give embeddings their rows
_VOCABULARY: Final = (
    ("tokenizer.ggml.tokens", HParam("tokens", Kind.STRING, Form.LABELS)),
    ("tokenizer.ggml.token_type_count", HParam("token_type_count")),
)
_LISTS: Final = frozenset({Form.PER_LAYER, Form.ARRAY, Form.EITHER})


def _extents(*shapes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    return zip(*((*shape, 1, 1, 1, 1)[:4] for shape in shapes), strict=True)


def _others(param: HParam, entry: KeyValue | None, n_layer: int) -> Iterator[KeyValue]:
    """Other values a key could have: changed where it is there, invented where it is not."""
    if entry is not None:
        yield from (replace(entry, value=value) for value in _changed(entry))
        return
    if param.form not in (Form.LABELS, Form.ARRAY):
        for value in _invented(param):
            yield KeyValue(key=param.key, type=param.kind.value, value=value)
    if param.form in _LISTS and param.kind in (Kind.U32, Kind.BOOL):
        for odd in (1, 0):
            elements = tuple(int(layer % 2 == odd) for layer in range(n_layer))
            array = ArrayValue(element_type=param.kind.value, count=n_layer, offset=0, end=0, elements=elements)
            yield KeyValue(key=param.key, type=ValueType.ARRAY, value=array)


def _changed(entry: KeyValue) -> Iterator[Scalar | ArrayValue]:
    value = entry.value
    if isinstance(value, ArrayValue):
        if value.element_type is ValueType.STRING or value.elements is None:
            yield replace(value, count=value.count + 1)
        else:
            yield replace(value, elements=tuple(_step(element) for element in value.elements))
    else:
        yield _step(value)
        if isinstance(value, int) and not isinstance(value, bool):
            yield value + 1


def _step(value: Scalar) -> Scalar:
    if isinstance(value, bool):
        return not value
    return value * 2 if isinstance(value, int | float) else value


def _invented(param: HParam) -> Iterator[Scalar]:
    if param.choices is not None:
        yield from param.choices
    elif param.kind is Kind.BOOL:
        yield not param.default
    elif param.kind is Kind.F32:
        yield 2.0
    elif param.kind is not Kind.STRING:
        yield from _LENGTHS

"""Reading keys: every declared key's value from a file's metadata, its type, form and bounds checked.

Where the reference aborts, this raises a typed error that names the key, what was expected and what was found.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from app.architectures.hparams import MAX_LAYERS, Form, HParam, Kind, Value
from app.errors import MetadataError
from app.modelfile.types import ArrayValue, KeyValue, ValueType

MAX_LIST: Final = 4096  # as many as a header builds


def read_values(
    arch: str, declared: Sequence[HParam], metadata: Mapping[str, KeyValue], n_layer_all: int
) -> dict[str, Value | None]:
    """Every declared key's value, checked. Raises MetadataError: missing_key, wrong_key_type or bad_value."""
    return {param.key: _read(param.name(arch), param, metadata, n_layer_all) for param in declared}


def _read(key: str, param: HParam, metadata: Mapping[str, KeyValue], n_layer_all: int) -> Value | None:
    entry = metadata.get(key)
    if entry is not None and param.form in (Form.ARRAY, Form.LIST) and entry.type is not ValueType.ARRAY:
        if param.required:
            raise _wrong_type(key, "an array", entry)
        entry = None
    if entry is None:
        if param.required:
            raise MetadataError(f"{key} is missing", code="missing_key", key=key)
        if param.default is None or param.form is not Form.PER_LAYER:
            return param.default
        assert not isinstance(param.default, str)
        return (param.default,) * n_layer_all
    if param.form is Form.LABELS:
        return _labels(key, entry)
    if isinstance(entry.value, ArrayValue):
        return _array(key, param, entry, entry.value, n_layer_all)
    value = _scalar(key, param, entry)
    if param.form is Form.PER_LAYER:
        assert not isinstance(value, str)
        return (value,) * n_layer_all
    return value


def _scalar(key: str, param: HParam, entry: KeyValue) -> int | float | bool | str:
    if entry.type is not param.kind.value:
        raise _wrong_type(key, param.kind.value.name.lower(), entry)
    value = entry.value
    assert not isinstance(value, ArrayValue)
    if param.choices is not None and value not in param.choices:
        raise MetadataError(
            f"{key} is {str(value)[:60]!r}, expected one of {', '.join(param.choices)}",
            code="bad_value",
            key=key,
            expected=", ".join(param.choices),
            found=str(value)[:60],
        )
    if not isinstance(value, str):
        _check_bounds(key, param, value)
    return value


_ELEMENT_TYPES: Final = {
    Kind.U32: (ValueType.U32, ValueType.I32),
    Kind.U64: (ValueType.U64,),
    Kind.I32: (ValueType.U32, ValueType.I32),
    Kind.F32: (ValueType.F32,),
    Kind.BOOL: (ValueType.BOOL,),
}


def _array(key: str, param: HParam, entry: KeyValue, array: ArrayValue, n_layer_all: int) -> tuple[int | float, ...]:
    exact = {Form.PER_LAYER: n_layer_all, Form.SECTIONS: 4}.get(param.form)
    if param.form is Form.SCALAR or param.kind is Kind.STRING:
        raise _wrong_type(key, param.kind.value.name.lower(), entry)
    allowed = _ELEMENT_TYPES[param.kind]
    if param.kind in (Kind.U32, Kind.I32):
        allowed = (*allowed, ValueType.BOOL)
    if array.element_type not in allowed:
        raise _wrong_type(key, f"an array of {param.kind.value.name.lower()}", entry)
    if exact is not None and array.count != exact:
        raise MetadataError(
            f"{key} has {array.count} elements, expected {exact}, one per block"
            if param.form is Form.PER_LAYER
            else f"{key} has {array.count} elements, expected {exact}",
            code="bad_value",
            key=key,
            expected=exact,
            found=array.count,
        )
    most = MAX_LIST if param.form is Form.LIST else MAX_LAYERS
    if array.count > most or array.elements is None:
        raise MetadataError(
            f"{key} has {array.count} elements, more than the limit of {most}",
            code="bad_value",
            key=key,
            expected=most,
            found=array.count,
        )
    elements: list[int | float] = []
    for element in array.elements:
        assert not isinstance(element, str)
        if param.kind is Kind.U32 and element < 0 and param.minimum is None:
            raise MetadataError(
                f"{key} holds {element}, expected no negative value",
                code="bad_value",
                key=key,
                expected="at least 0",
                found=element,
            )
        _check_bounds(key, param, element)
        elements.append(int(element) if param.kind in (Kind.U32, Kind.I32) else element)
    return tuple(elements)


def _labels(key: str, entry: KeyValue) -> int:
    if not isinstance(entry.value, ArrayValue) or entry.value.element_type is not ValueType.STRING:
        raise _wrong_type(key, "an array of string", entry)
    return entry.value.count


def _check_bounds(key: str, param: HParam, value: int | float) -> None:
    if (param.minimum is not None and value < param.minimum) or (param.maximum is not None and value > param.maximum):
        low = param.minimum if param.minimum is not None else 0
        expected = f"{low} to {param.maximum}" if param.maximum is not None else f"at least {low}"
        raise MetadataError(
            f"{key} is {value}, expected {expected}", code="bad_value", key=key, expected=expected, found=value
        )


def _wrong_type(key: str, expected: str, entry: KeyValue) -> MetadataError:
    found = entry.type.name.lower()
    if isinstance(entry.value, ArrayValue):
        found = f"an array of {entry.value.element_type.name.lower()}"
    return MetadataError(
        f"{key} is {found}, expected {expected}", code="wrong_key_type", key=key, expected=expected, found=found
    )

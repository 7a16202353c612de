import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from app.api.rows import JSON, NPY, json_pieces, npy_pieces, parse_embeddings
from app.errors import RequestError

SHAPES = arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=40)


@given(values=arrays.arrays(np.float32, SHAPES))
def test_npy_is_numpys_own(values: NDArray[np.float32]) -> None:
    """The pieces are, byte for byte, the file that numpy writes."""
    expected = io.BytesIO()
    np.save(expected, values)
    assert expected.getvalue() == b"".join(npy_pieces(values))


@given(values=arrays.arrays(np.float32, SHAPES))
def test_json_gives_the_same_values(values: NDArray[np.float32]) -> None:
    """Each finite value comes back exactly; what is not finite is null."""
    answer = json.loads(b"".join(json_pieces(values, range(len(values)))))
    assert ([*values.shape], [*range(len(values))]) == (answer["shape"], answer["tokens"])
    rows = [[np.nan if value is None else value for value in row] for row in answer["embeddings"]]
    finite = np.where(np.isfinite(values), values, np.float32(np.nan))
    assert np.array_equal(finite, np.array(rows, np.float32).reshape(values.shape), equal_nan=True)


def test_long_answers_come_in_pieces() -> None:
    """Neither form makes more than about a megabyte at once."""
    values = np.zeros((4000, 500), np.float32)
    for pieces in (npy_pieces(values), json_pieces(values, range(4000))):
        sizes = [len(piece) for piece in pieces]
        assert len(sizes) > 4
        assert max(sizes) < 1.1 * (1 << 20)


def test_many_tokens_come_in_pieces() -> None:
    """The tokens of an answer are written as the rows are: never all at once."""
    pieces = [*json_pieces(np.zeros((0, 4), np.float32), range(400_000))]
    assert [*range(400_000)] == json.loads(b"".join(pieces))["tokens"]
    assert max(map(len, pieces)) < 1.2 * (1 << 20)


@pytest.mark.parametrize(
    ("body", "accept", "expected"),
    [
        ({"tokens": [1]}, "", JSON),
        ({"tokens": [1]}, "*/*", JSON),
        ({"tokens": [1]}, NPY, NPY),
        ({"tokens": [1]}, f"{NPY}, {JSON}", JSON),
        ({"tokens": [1]}, f"{JSON};q=0, {NPY}", NPY),
        ({"tokens": [1]}, f"{NPY};q=0.5, */*", NPY),
        ({"tokens": [1], "format": "json"}, NPY, JSON),
        ({"tokens": [1], "format": "npy"}, "text/html", NPY),
    ],
)
def test_the_form_of_the_answer(body: dict[str, object], accept: str, expected: str) -> None:
    """The body's format decides; else npy for those who name it and not JSON; else JSON."""
    assert ([1], None, expected) == parse_embeddings(json.dumps(body).encode(), accept)


def test_a_form_that_is_not_to_be_had() -> None:
    """Whoever accepts neither form is told which there are."""
    with pytest.raises(RequestError) as refused:
        parse_embeddings(b'{"tokens": []}', "text/html")
    assert ("not_acceptable", [JSON, NPY]) == (refused.value.code, refused.value.facts["available"])


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("[]", None),
        ("{", None),
        ("{}", "tokens"),
        ('{"tokens": 1}', "tokens"),
        ('{"tokens": [1, true]}', "tokens[1]"),
        ('{"tokens": [1.0]}', "tokens[0]"),
        ('{"tokens": ["1"]}', "tokens[0]"),
        ('{"tokens": [1], "token": 1}', "token"),
        ('{"tokens": [1], "copy": -1}', "copy"),
        ('{"tokens": [1], "copy": true}', "copy"),
        ('{"tokens": [1], "format": "csv"}', "format"),
        ('{"tokens": [1], "format": ["npy"]}', "format"),
    ],
)
def test_a_body_that_makes_no_sense(text: str, field: str | None) -> None:
    """What is wrong with the body is named; nothing is converted."""
    with pytest.raises(RequestError) as refused:
        parse_embeddings(text.encode(), "")
    assert ("bad_request", field) == (refused.value.code, refused.value.facts["field"])

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.errors import BusyError, ConflictError, DeviceError, GgufdError, NotFoundError, RequestError
from app.loading.negotiation import LoadMode
from app.loading.request import PlanRequest
from app.planner.plan import Override, SplitMode
from app.residency import reading
from app.service import LoaderService
from tests.builders import t0
from tests.worlds import ended, held, world

SPLIT: dict[str, Any] = {"split_mode": SplitMode.TENSOR, "devices": ("keep0", "host0", "sum0")}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[LoaderService]:
    t0(tmp_path / "m.gguf")
    t0(tmp_path / "tied.gguf", drop=("output.weight",))
    simulated = ("keep0:64MiB,keep_bytes", "sum0:64MiB")
    service = LoaderService(world(tmp_path, simulated=simulated, extra={"held": held()}))
    yield service
    assert service.close(10)


def load(service: LoaderService, model: str = "m.gguf", **wishes: Any) -> str:
    """A ready handle."""
    handle_id = service.submit(PlanRequest(model=model, **wishes)).id
    assert "ready" == ended(service, handle_id).state
    return handle_id


def test_only_a_ready_handle_can_be_read(service: LoaderService) -> None:
    """A load under way is still_loading; one that was released holds no model; an unknown one is not found."""
    with pytest.raises(NotFoundError):
        service.reader("h-none")
    waiting = service.submit(PlanRequest(model="m.gguf", devices=("held",)))
    with pytest.raises(BusyError) as busy:
        service.reader(waiting.id)
    assert "still_loading" == busy.value.code
    service._world.backends["held"].gate.set()  # type: ignore[attr-defined]
    ready = load(service)
    service.reader(ready)
    service.release(ready)
    with pytest.raises(ConflictError) as gone:
        service.reader(ready)
    assert ("not_resident", "released") == (gone.value.code, gone.value.facts["state"])


def test_a_release_waits_for_a_piece_and_ends_the_rest(service: LoaderService, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release during a read waits for the piece under way; the next piece says that the model is gone."""
    inside, go_on = threading.Event(), threading.Event()
    original = reading.stream  # type: ignore[attr-defined]

    def slow(*arguments: Any) -> Iterator[bytes]:
        for number, piece in enumerate(original(*arguments)):
            if number == 0:
                inside.set()
                assert go_on.wait(10)
            yield piece[:100]
            yield piece[100:]

    monkeypatch.setattr(reading, "stream", slow)
    handle_id = load(service)
    content = service.reader(handle_id).content("token_embd.weight")
    pieces = content.pieces(0, content.nbytes)
    first: list[bytes] = []
    reader = threading.Thread(target=lambda: first.append(next(pieces)))
    reader.start()
    assert inside.wait(10)
    assert "releasing" == service.release(handle_id, wait_seconds=0.05).state
    go_on.set()
    assert "released" == service.release(handle_id).state
    reader.join()
    assert 100 == len(first[0])
    with pytest.raises(ConflictError) as gone:
        next(pieces)
    assert "not_resident" == gone.value.code


def test_an_abandoned_read_holds_nothing(service: LoaderService) -> None:
    """A reader that stops in the middle and never comes back does not keep the model from being released."""
    handle_id = load(service)
    content = service.reader(handle_id).content("token_embd.weight")
    next(content.pieces(0, content.nbytes))
    assert "released" == service.release(handle_id).state


def test_a_read_that_has_all_its_bytes_is_over(service: LoaderService) -> None:
    """Once the last byte was handed out, a release in that moment makes it no failure."""
    handle_id = load(service)
    content = service.reader(handle_id).content("blk.0.attn_norm.weight")
    pieces = content.pieces(0, content.nbytes)
    assert content.nbytes == len(next(pieces))
    service.release(handle_id)
    assert [] == [*pieces]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"device": "host9"}, "device"),
        ({"copy": 1}, "copy"),
        ({"copy": 0, "device": "host1"}, "device"),
    ],
)
def test_what_is_not_there_is_told(service: LoaderService, arguments: dict[str, Any], field: str) -> None:
    """A device that holds nothing of the tensor and a copy that does not exist are named, with what there is."""
    reader = service.reader(load(service, **SPLIT))
    with pytest.raises(RequestError) as wrong:
        reader.content("blk.0.attn_q.weight", **arguments)
    assert field == wrong.value.facts["field"]
    with pytest.raises(NotFoundError) as unknown:
        reader.content("blk.9.attn_q.weight")
    assert "tensor_not_found" == unknown.value.code


def test_the_same_bytes_have_the_same_tag(service: LoaderService) -> None:
    """Loads of one file give a tensor one tag, wherever it lies; slices, values and other tensors have others."""
    split = service.reader(load(service, split_mode=SplitMode.TENSOR, devices=("keep0", "host0")))
    whole = service.reader(load(service, devices=("host0",)))
    name = "output.weight"
    assert whole.content(name).tag == split.content(name).tag
    tags = [
        split.content(name).tag,
        split.content(name, as_f32=True).tag,
        split.content(name, device="keep0").tag,
        split.content(name, device="host0").tag,
        split.content(name, device="host0", as_f32=True).tag,
        split.content("output_norm.weight").tag,
    ]
    assert len(tags) == len(set(tags))


def test_copies_are_told_apart(service: LoaderService) -> None:
    """A tensor that is placed twice is listed twice, and each copy reads the same."""
    reader = service.reader(load(service, "tied.gguf", **SPLIT))
    facts = reader.tensor("token_embd.weight")
    assert ["token_embd", "output_tied"] == [copy["role"] for copy in facts["copies"]]
    listed, count = reader.tensors("output_tied", None, None, 0, 10)
    assert (1, "token_embd.weight") == (count, listed[0]["name"])
    first = b"".join(reader.content("token_embd.weight", copy=0).pieces(0, 8192))
    assert first == b"".join(reader.content("token_embd.weight", device="keep0").pieces(0, 8192))
    rows = [reader.embeddings([3, 1], copy).values for copy in (None, 0, 1)]
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])


def test_an_embedding_is_read_where_it_can_be(service: LoaderService) -> None:
    """Bytes that no device keeps are a DeviceError; a copy of the tensor that can be read stands in."""
    override = (Override(pattern="^token_embd", device="sum0"),)
    reader = service.reader(load(service, overrides=override, devices=("host0", "sum0"), load_mode=LoadMode.NONE))
    with pytest.raises(DeviceError, match="checksum"):
        reader.embeddings([1])
    assert (0, 64) == reader.embeddings([]).values.shape


@pytest.mark.parametrize(
    ("tokens", "field"),
    [([0, 32], "tokens[1]"), ([-1], "tokens[0]"), ([5, 1 << 70], "tokens[1]"), ([0] * (1 << 21), "tokens")],
)
def test_tokens_that_are_no_rows(service: LoaderService, tokens: list[int], field: str) -> None:
    """The first token without a row is named, also one beyond 64 bits; so is a wish for more than an answer holds."""
    reader = service.reader(load(service))
    with pytest.raises(GgufdError) as wrong:
        reader.embeddings(tokens)
    assert ("bad_request", field) == (wrong.value.code, wrong.value.facts["field"])


def test_filters(service: LoaderService) -> None:
    """Role, layer and device narrow the list, together; a page of it knows how many there are."""
    reader = service.reader(load(service, **SPLIT))
    everything, count = reader.tensors(None, None, None, 0, 1000)
    assert (21, 21) == (len(everything), count)
    page, count = reader.tensors(None, 1, "host0", 2, 3)
    expected = [it for it in everything if it["layer"] == 1 and "host0" in {p["device"] for p in it["placements"]}]
    assert (expected[2:5], len(expected)) == (page, count)
    assert ([], 0) == reader.tensors("attn_q", 7, None, 0, 10)
    for role, device in (("attn_x", None), (None, "host1")):
        with pytest.raises(RequestError):
            reader.tensors(role, None, device, 0, 10)

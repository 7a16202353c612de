"""Reading loaded models over HTTP, against a real daemon."""

import hashlib
import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import numpy as np
import pytest

from app.ggml import BY_NAME, dequantise
from app.modelfile.reader import read_model_file
from app.modelfile.types import ModelFile, ValueType
from app.modelfile.writer import MetadataValue, Typed
from tests.api.test_app import require_problem
from tests.builders import build, llama_keys, llama_tensors, t0, vocabulary
from tests.daemon import running_daemon
from tests.examples import example_file
from tests.oracle import the_catalog
from tests.real_models import real_model_path
from tests.test_ggml import RECORDED

SIMULATED = "keep0:1GiB,keep_bytes;keep1:1GiB,keep_bytes;sum0:1GiB;copied:1GiB,keep_bytes,no-mmap_support"
SPREAD = ["host0", "keep0", "host1"]
NAMES = "test.na%2fm\nés"  # an odd key: links to it must be what they say


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the models."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def http(root: Path) -> Iterator[httpx.Client]:
    """A client of a daemon with devices of every kind."""
    flags = ["--model-roots", str(root), "--host-devices", "3", "--host-capacity-bytes", "4GiB"]
    with (
        running_daemon(*flags, "--simulated-devices", SIMULATED, "--log-level", "warning") as daemon,
        httpx.Client(base_url=daemon.url, timeout=60) as client,
    ):
        yield client


class Loaded:
    """A ready handle, released at the end of the block."""

    def __init__(self, http: httpx.Client, body: dict[str, Any]) -> None:
        self._http = http
        self._body = body
        self.path = ""

    def __enter__(self) -> "Loaded":
        answer = self._http.post("/v1/handles", json=self._body, headers={"Prefer": "wait=60"})
        assert 200 == answer.status_code, answer.text
        self.path = f"/v1/handles/{answer.json()['id']}"
        return self

    def __exit__(self, *_: object) -> None:
        self._http.delete(self.path)

    def get(self, path: str, **headers: str) -> httpx.Response:
        """GET a path below the handle's."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self._http.get(f"{self.path}{path}", headers=named)

    def data(self, name: str, query: str = "", **headers: str) -> httpx.Response:
        """GET a tensor's bytes."""
        return self.get(f"/tensors/{name}/data{query}", **headers)

    def rows(self, tokens: list[int], **more: Any) -> httpx.Response:
        """POST a request for embeddings."""
        return self._http.post(f"{self.path}/embeddings", json={"tokens": tokens, **more})

    def array(self, tokens: list[int], **more: Any) -> np.ndarray:
        """The embeddings as an array."""
        answer = self.rows(tokens, format="npy", **more)
        assert 200 == answer.status_code, answer.text
        return np.asarray(np.load(io.BytesIO(answer.content)))


def file_bytes(model: ModelFile, name: str) -> bytes:
    """A tensor as the file has it."""
    tensor = model.by_name[name]
    with model.shards[tensor.shard].path.open("rb") as file:
        file.seek(tensor.offset)
        return file.read(tensor.nbytes)


@pytest.fixture(scope="module")
def model(root: Path) -> ModelFile:
    """T0(2) with a vocabulary of 32 tokens and a quantised embedding of 64 values a row."""
    keys: dict[str, MetadataValue | None] = {
        **vocabulary(),
        "llama.vocab_size": None,
        NAMES: Typed(ValueType.STRING, ["a"] * 100, array=True),
        "test.text": "x" * 3000,
        "test.nan": Typed(ValueType.F32, float("nan")),
    }
    types = {"token_embd.weight": "q8_0", "output.weight": "q8_0"}
    return read_model_file(t0(root / "m.gguf", set_keys=keys, types=types))


AXES: set[object] = set()


@pytest.mark.parametrize("mode", ["none", "layer", "tensor"])
@pytest.mark.parametrize(
    ("architecture", "also"),
    [("llama", ()), ("gpt-oss", ("ffn_down_exps.bias",)), ("deepseek4", ())],
)
def test_every_tensor_is_the_files(
    http: httpx.Client, root: Path, architecture: str, also: tuple[str, ...], mode: str
) -> None:
    """Whole, split along any axis, mirrored, partial or mapped: the bytes over HTTP are the file's."""
    model = read_model_file(example_file(the_catalog().get(architecture), root / "example.gguf", also))
    body = {"model": "example.gguf", "split_mode": mode, "devices": SPREAD}
    if mode == "tensor":
        assert the_catalog().get(architecture).capabilities.tensor_split
    with Loaded(http, body) as loaded:
        listed = loaded.get("/tensors").json()
        AXES.update(tensor["axis"] for tensor in listed["tensors"])
        names = {tensor["name"] for tensor in listed["tensors"]}
        assert model.by_name.keys() >= names
        for name in sorted(names):
            assert file_bytes(model, name) == loaded.data(name).content, name


def test_every_way_of_being_placed_was_read() -> None:
    """The tests above have read tensors cut along each axis, mirrored, partial, and whole."""
    assert {0, 1, 2, "mirrored", "partial", None} <= AXES


@pytest.mark.parametrize("name", ["smollm2-135m.gguf"])
def test_a_real_model_hash_by_hash(name: str) -> None:
    """Every tensor of a real model, split by tensor over three devices, has the hash that it has in the file."""
    path = real_model_path(name)
    model = read_model_file(path)
    flags = ["--model-roots", str(path.parent), "--host-devices", "3", "--log-level", "warning"]
    body = {"model": name, "split_mode": "tensor", "devices": ["host0", "host1", "host2"]}
    with (
        running_daemon(*flags) as daemon,
        httpx.Client(base_url=daemon.url, timeout=60) as http,
        Loaded(http, body) as loaded,
    ):
        for tensor in model.tensors:
            expected = hashlib.sha256(file_bytes(model, tensor.name)).hexdigest()
            assert expected == hashlib.sha256(loaded.data(tensor.name).content).hexdigest(), tensor.name


@pytest.mark.parametrize("mode", ["mmap", "none"])
def test_ranges(http: httpx.Client, model: ModelFile, mode: str) -> None:
    """A range is answered with 206, its place and its bytes; one that isn't there with 416 and the size."""
    with Loaded(http, {"model": "m.gguf", "load_mode": mode, "devices": ["host0"]}) as loaded:
        whole = file_bytes(model, "output.weight")
        for text, part in (("0-0", whole[:1]), ("7-99", whole[7:100]), ("-9", whole[-9:]), ("5-", whole[5:])):
            answer = loaded.data("output.weight", Range=f"bytes={text}")
            start = whole.index(part) if text != "0-0" else 0
            assert (206, part) == (answer.status_code, answer.content)
            assert f"bytes {start}-{start + len(part) - 1}/{len(whole)}" == answer.headers["content-range"]
            assert str(len(part)) == answer.headers["content-length"]
        for text in (f"bytes={len(whole)}-", "bytes=0-1,4-5", "bytes=x"):
            refused = loaded.data("output.weight", Range=text)
            require_problem(refused, 416, "range_not_satisfiable")
            assert f"bytes */{len(whole)}" == refused.headers["content-range"]


def test_conditions(http: httpx.Client, model: ModelFile) -> None:
    """The tag is the same for each load of the file; who has it gets 304, and a range of an old version all of it.

    Who insists on another version is refused.
    """
    tags = set()
    for devices in (["host0"], ["host0", "host1"]):
        body = {"model": "m.gguf", "split_mode": "tensor" if len(devices) > 1 else "layer", "devices": devices}
        with Loaded(http, body) as loaded:
            answer = loaded.data("output.weight")
            tags.add(answer.headers["etag"])
            known = loaded.data("output.weight", If_None_Match=answer.headers["etag"])
            assert (304, b"", *tags) == (known.status_code, known.content, known.headers["etag"])
            assert 200 == loaded.data("output.weight", If_None_Match='"other"').status_code
            require_problem(loaded.data("output.weight", If_Match='"other"'), 412, "precondition_failed")
            assert 206 == loaded.data("output.weight", If_Match=answer.headers["etag"], Range="bytes=0-3").status_code
            fresh = loaded.data("output.weight", Range="bytes=0-3", If_Range=answer.headers["etag"])
            stale = loaded.data("output.weight", Range="bytes=0-3", If_Range='"other"')
            assert (206, 200, answer.content) == (fresh.status_code, stale.status_code, stale.content)
    assert 1 == len(tags)


def test_head(http: httpx.Client, model: ModelFile) -> None:
    """HEAD answers what GET would, without the bytes; ranges are for GET alone (RFC 9110, 14.2)."""
    with Loaded(http, {"model": "m.gguf", "devices": ["host0"]}) as loaded:
        for query, headers in (
            ("", {}),
            ("?dtype=f32", {}),
            ("", {"Range": "bytes=3-8"}),
            ("", {"Range": "bytes=9-8"}),
        ):
            path = f"{loaded.path}/tensors/output.weight/data{query}"
            got, head = http.get(path), http.head(path, headers=headers)
            assert (got.status_code, b"") == (head.status_code, head.content)
            for name in ("etag", "content-length", "content-range", "content-type", "accept-ranges"):
                assert got.headers.get(name) == head.headers.get(name)


def test_slices_and_values(http: httpx.Client, model: ModelFile) -> None:
    """One device's slice as it lies there, and float32 values with ranges of them, of the whole and of a slice."""
    with Loaded(http, {"model": "m.gguf", "split_mode": "tensor", "devices": ["keep0", "host1"]}) as loaded:
        whole = np.frombuffer(file_bytes(model, "output.weight"), np.uint8).reshape(32, -1)
        facts = loaded.get("/tensors/output.weight").json()["copies"][0]
        assert 1 == facts["axis"]
        first = facts["segments"][0]["extents"][0]
        parts = {"keep0": whole[:first], "host1": whole[first:]}
        for device, part in parts.items():
            assert part.tobytes() == loaded.data("output.weight", f"?device={device}").content
            values = dequantise(BY_NAME["q8_0"], part).tobytes()
            assert values == loaded.data("output.weight", f"?device={device}&dtype=f32").content
        values = dequantise(BY_NAME["q8_0"], whole).tobytes()
        assert len(values) == loaded.get("/tensors/output.weight").json()["f32_bytes"]
        ranged = loaded.data("output.weight", "?dtype=f32", Range="bytes=1001-5000")
        assert (206, values[1001:5001]) == (ranged.status_code, ranged.content)


@pytest.mark.parametrize("name", RECORDED)
def test_embeddings_of_every_type(http: httpx.Client, root: Path, oracle_dir: Path, name: str) -> None:
    """Rows of every type are the reference's to the bit: mapped, on the host, copied to a device, mirrored."""
    raw = (oracle_dir / "dequant" / f"{name}.bin").read_bytes()
    expected = np.fromfile(oracle_dir / "dequant" / f"{name}.f32", np.uint32).reshape(8, 512)
    sizes = {"embd": 512, "heads": 8, "kv": 8}
    build(
        root / "typed.gguf",
        {**llama_keys(1, **sizes), "llama.vocab_size": 8},
        llama_tensors(1, **sizes),
        drop=("output.weight",),
        types={"token_embd.weight": name},
        shapes={"token_embd.weight": (512, 8)},
        data={"token_embd.weight": raw},
    )
    on_device = {"overrides": [{"pattern": "^token_embd", "device": "copied"}], "devices": ["copied"]}
    tokens = [5, 0, 7, 7, 2]
    for more, copies in (
        ({"devices": ["host0"], "load_mode": "mmap"}, [None]),
        ({"devices": ["host0"], "load_mode": "none"}, [None]),
        ({**on_device, "load_mode": "none"}, [None]),
        ({"split_mode": "tensor", "devices": ["keep0", "host1"], "load_mode": "none"}, [None, 0, 1]),
    ):
        with Loaded(http, {"model": "typed.gguf", **more}) as loaded:
            for copy in copies:
                rows = loaded.array(tokens, copy=copy)
                assert np.array_equal(expected[tokens], rows.view(np.uint32))


def test_embeddings_as_json_and_npy(http: httpx.Client, model: ModelFile) -> None:
    """Both forms give the same rows, each row is said for its token, and the daemon says how long it took."""
    table = dequantise(BY_NAME["q8_0"], np.frombuffer(file_bytes(model, "token_embd.weight"), np.uint8).reshape(32, -1))
    with Loaded(http, {"model": "m.gguf"}) as loaded:
        answer = loaded.rows([3, 31, 3])
        assert ("application/json", [3, 64], [3, 31, 3]) == (
            answer.headers["content-type"],
            answer.json()["shape"],
            answer.json()["tokens"],
        )
        assert np.array_equal(table[[3, 31, 3]], np.array(answer.json()["embeddings"], np.float32))
        assert np.array_equal(table[[3, 31, 3]], loaded.array([3, 31, 3]))
        assert (0, 64) == loaded.array([]).shape
        accepted = http.post(f"{loaded.path}/embeddings", json={"tokens": [1]}, headers={"Accept": "application/x-npy"})
        assert "application/x-npy" == accepted.headers["content-type"]
        timing = re.findall(r"(\w+);dur=(\d+\.\d+)", accepted.headers["server-timing"])
        assert ["read", "dequantise", "total"] == [name for name, _ in timing]
        require_problem(loaded.rows([3, 32]), 400, "bad_request")
        refused = http.post(f"{loaded.path}/embeddings", json={"tokens": [1]}, headers={"Accept": "text/html"})
        require_problem(refused, 406, "not_acceptable")


def test_devices_without_bytes_say_so(http: httpx.Client, model: ModelFile) -> None:
    """A simulated device that keeps a checksum answers reads with its reason, before any byte is sent."""
    body = {"model": "m.gguf", "devices": ["sum0"], "load_mode": "none"}
    with Loaded(http, body) as loaded:
        for query in ("", "?device=sum0", "?dtype=f32"):
            found = require_problem(loaded.data("output.weight", query), 409, "bytes_not_kept")
            assert ("sum0", "read") == (found["device"], found["operation"])
            assert "checksum" in found["detail"]


def test_bytes_of_which_a_part_is_not_kept_are_refused_at_once(http: httpx.Client, model: ModelFile) -> None:
    """Where one of several devices keeps no bytes, nobody gets half a tensor: the refusal comes before any byte."""
    body = {"model": "m.gguf", "split_mode": "tensor", "devices": ["host0", "sum0"], "load_mode": "none"}
    with Loaded(http, body) as loaded:
        for method in ("GET", "HEAD"):
            assert 409 == http.request(method, f"{loaded.path}/tensors/output.weight/data").status_code
        assert 200 == loaded.data("output.weight", "?device=host0").status_code


def test_every_metadata_key_can_be_asked_for(http: httpx.Client, root: Path) -> None:
    """Whatever characters a key has, slashes too, its path leads to it, as does the link to its whole value."""
    odd = ["a/b?c#d", "a//b/", "%2F", "sp ace", "é", "../x"]
    keys = dict.fromkeys(odd, "short") | {f"{key}/long": "x" * 5000 for key in odd}
    t0(root / "odd-keys.gguf", set_keys=keys)
    with Loaded(http, {"model": "odd-keys.gguf", "devices": ["host"]}) as loaded:
        whole = {entry["key"]: entry.get("whole") for entry in loaded.get("/metadata").json()["metadata"]}
        for key in odd:
            assert "short" == http.get(f"{loaded.path}/metadata/{quote(key, safe='')}").json()["value"]
            assert 5000 == len(http.get(str(whole[f"{key}/long"])).json()["value"])


def test_lists_and_their_filters(http: httpx.Client, model: ModelFile) -> None:
    """Pages follow one another to the end; role, layer and device narrow the list; what makes no sense is refused."""
    with Loaded(http, {"model": "m.gguf", "split_mode": "tensor", "devices": ["host0", "host1"]}) as loaded:
        everything = loaded.get("/tensors").json()
        assert (21, None, 21) == (everything["count"], everything["next"], len(everything["tensors"]))
        seen, place = [], "/tensors?limit=8"
        while place:
            page = http.get(place).json() if place.startswith("/v1") else loaded.get(place).json()
            seen += page["tensors"]
            place = page["next"]
        assert everything["tensors"] == seen
        narrow = loaded.get("/tensors?role=attn_q&layer=1&device=host1").json()
        assert ["blk.1.attn_q.weight"] == [tensor["name"] for tensor in narrow["tensors"]]
        for query in ("layer=x", "layer=-1", "limit=0", "limit=100000", "offset=-1", "role=nope", "device=nope",
                      "roles=attn_q", "layer=1&layer=2"):  # fmt: skip
            require_problem(loaded.get(f"/tensors?{query}"), 400, "bad_request")
        for query in ("dtype=f16", "device=nope", "copy=1", "type=f32"):
            require_problem(loaded.data("output.weight", f"?{query}"), 400, "bad_request")
        for path in ("/tensors/nope", "/tensors/nope/data"):
            require_problem(loaded.get(path), 404, "tensor_not_found")


def test_metadata(http: httpx.Client, model: ModelFile) -> None:
    """Every key is listed with its type; what is long is cut, and says where the whole is, page by page."""
    with Loaded(http, {"model": "m.gguf"}) as loaded:
        entries = {entry["key"]: entry for entry in loaded.get("/metadata").json()["metadata"]}
        assert model.metadata.keys() == entries.keys()
        assert ("u32", 2, True) == tuple(entries["llama.block_count"][name] for name in ("type", "value", "complete"))
        assert "nan" == entries["test.nan"]["value"]
        text, names = entries["test.text"], entries[NAMES]
        assert (3000, 1000, False) == (text["count"], len(text["value"]), text["complete"])
        assert "x" * 3000 == http.get(text["whole"]).json()["value"]
        assert ("string", 100, None) == (names["element_type"], names["count"], names["value"])
        page = http.get(names["whole"], params={"offset": 90, "limit": 7}).json()
        assert (["a"] * 7, False) == (page["value"], page["complete"])
        assert ["a"] * 3 == http.get(page["next"]).json()["value"]
        require_problem(loaded.get("/metadata/none"), 404, "key_not_found")


def test_vocabulary(http: httpx.Client, model: ModelFile) -> None:
    """Tokens come with scores and types, page by page; a model without a vocabulary has none."""
    with Loaded(http, {"model": "m.gguf"}) as loaded:
        page = loaded.get("/vocabulary?offset=30").json()
        assert ("llama", 32, None) == (page["model"], page["count"], page["next"])
        assert [{"id": 30, "text": "t30", "score": 0.0, "type": "normal"}] == page["tokens"][:1]
        assert 2 == len(page["tokens"])


def test_a_vocabulary_whose_file_has_changed(http: httpx.Client, root: Path) -> None:
    """The file is read again for a vocabulary, so one that is no longer the same is refused, and the tensors stay."""
    path = t0(root / "changing.gguf", set_keys={**vocabulary(), "llama.vocab_size": None})
    with Loaded(http, {"model": "changing.gguf", "load_mode": "none"}) as loaded:
        path.write_bytes(path.read_bytes() + b"\0")
        require_problem(loaded.get("/vocabulary"), 422, "file_changed")
        assert 200 == loaded.data("output.weight").status_code


def test_handles_that_hold_no_model(http: httpx.Client, model: ModelFile) -> None:
    """Every route of reading says that a handle is unknown or released."""
    with Loaded(http, {"model": "m.gguf"}) as loaded:
        pass
    for base, status, code in ((loaded.path, 409, "not_resident"), ("/v1/handles/h-none", 404, "handle_not_found")):
        for path in ("tensors", "tensors/x", "tensors/x/data", "metadata", "metadata/x", "vocabulary"):
            require_problem(http.get(f"{base}/{path}"), status, code)
        require_problem(http.post(f"{base}/embeddings", json={"tokens": [1]}), status, code)


def test_routes_are_counted_by_their_template(http: httpx.Client, model: ModelFile) -> None:
    """Metrics name the route, never a tensor."""
    with Loaded(http, {"model": "m.gguf"}) as loaded:
        loaded.data("output.weight")
    scraped = http.get("/metrics").text
    assert 'route="/v1/handles/{handle_id}/tensors/{name}/data"' in scraped
    assert "output.weight" not in scraped

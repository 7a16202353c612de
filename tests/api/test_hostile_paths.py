"""Paths that lead where they may not, and kinds of files that nobody should read, over HTTP."""

import ctypes
import os
import threading
import time
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.conftest import Small
from tests.api.test_app import require_problem
from tests.builders import t0
from tests.daemon import running_daemon

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


@pytest.fixture
def anyio_backend() -> str:
    """The edge runs on asyncio."""
    return "asyncio"


def ask_both(http: httpx.Client, model: str) -> tuple[httpx.Response, httpx.Response]:
    """A plan of `model`, and a load that is waited for."""
    return http.post("/v1/plans", json={"model": model}), http.post(
        "/v1/handles", json={"model": model}, headers={"Prefer": "wait=10"}
    )


def outside_and_missing(http: httpx.Client, outside: str, missing: str) -> None:
    """Both calls answer for `outside` what they answer for `missing`, but for the path that was asked for."""
    for there, nowhere in zip(ask_both(http, outside), ask_both(http, missing), strict=True):
        require_problem(there, 404, "model_not_found")
        expected = nowhere.content.replace(missing.encode(), b"*")
        assert expected == there.content.replace(str(Path(outside)).encode(), b"*")
        assert {k: v for k, v in nowhere.headers.items() if k not in ("content-length", "date")} == {
            k: v for k, v in there.headers.items() if k not in ("content-length", "date")
        }


@pytest.mark.parametrize(
    "path",
    [
        "/etc/passwd",
        "/etc",
        "/etc/",
        "//etc//passwd/",
        "/etc/../etc/passwd",
        "/proc/self/exe",
        "/proc/self/root/etc/passwd",
        "/proc/self/cwd",
        "/proc/self/fd/0",
        "/dev/zero",
        "/dev/fd/0",
        "/root/.ssh/id_rsa",
    ],
)
def test_a_path_outside_the_roots_answers_as_if_it_were_not_there(http: httpx.Client, path: str) -> None:
    """Nobody learns from the answer whether something exists outside the roots."""
    outside_and_missing(http, path, "/etc/no-such-file")


def test_the_roots_cannot_be_left(http: httpx.Client, root: Path, tmp_path: Path) -> None:
    """Neither dots nor links nor a root's name as a prefix lead out; what lies outside seems not to be there."""
    t0(tmp_path / "outside.gguf")
    sibling = root.parent / f"{root.name}-sibling"
    sibling.mkdir(exist_ok=True)
    t0(sibling / "outside.gguf")
    (root / "link.gguf").symlink_to(tmp_path / "outside.gguf")
    (root / "folder").symlink_to(tmp_path)
    dots = "/".join([".."] * 30)
    for path in (
        str(tmp_path / "outside.gguf"),
        str(sibling / "outside.gguf"),
        f"{dots}{tmp_path}/outside.gguf",
        f"{root}/../{sibling.name}/outside.gguf",
        f"/proc/self/root{tmp_path}/outside.gguf",
        f"{root}/t0.gguf/../../{sibling.name}/outside.gguf",
        "link.gguf",
        "./link.gguf/",
        "folder/outside.gguf",
        "folder",
        "..",
        "/",
    ):
        outside_and_missing(http, path, "no-such-model.gguf")


@pytest.mark.parametrize(
    "path",
    [
        *("~/x.gguf", "%2e%2e/x.gguf", "file:x.gguf", "x" * 300, "a/" * 2000 + "x", "a\nb.gguf"),
        *(" ", "/", "//", "..", "../", "circle"),
    ],
)
def test_a_strange_path_is_a_path_like_any_other(http: httpx.Client, root: Path, path: str) -> None:
    """Nothing in a path is expanded, decoded or cut; it is looked for as it is, and not found."""
    if path == "circle":
        (root / "circle").symlink_to("circle")
    for response in ask_both(http, path):
        require_problem(response, 404, "model_not_found")


@pytest.mark.parametrize("path", ["a\0b.gguf", "\0", "t0.gguf\0", "x" * 4097, ""])
def test_what_no_path_can_be_is_a_malformed_request(http: httpx.Client, path: str) -> None:
    """Zero bytes and more characters than any path may have never get near the file system."""
    for response in ask_both(http, path):
        assert "model" == require_problem(response, 400, "bad_request")["field"]


@pytest.mark.parametrize(
    "name",
    [
        "with space.gguf",
        "per%20cent.gguf",
        "hash#.gguf",
        "line\nfeed.gguf",
        unicodedata.normalize("NFC", "é.gguf"),
        unicodedata.normalize("NFD", "é.gguf"),
        "模型.gguf",
        "'quoted\".gguf",
    ],
)
def test_a_strange_name_is_loaded_under_that_name(http: httpx.Client, root: Path, name: str) -> None:
    """Spaces, escapes, line feeds, both forms of accents and other scripts are names like any other."""
    t0(root / name)
    response = http.post("/v1/handles", json={"model": name}, headers={"Prefer": "wait=10"})
    assert 200 == response.status_code
    assert name == response.json()["model"]


def test_a_name_that_is_not_utf8_is_refused_cleanly(http: httpx.Client, root: Path) -> None:
    """JSON cannot carry a name of arbitrary bytes: asking for one is a malformed request, not a crash."""
    t0(Path(os.fsdecode(os.fsencode(root) + b"/\xff.gguf")))
    response = http.post(
        "/v1/plans", content=b'{"model": "\\udcff.gguf"}', headers={"Content-Type": "application/json"}
    )
    require_problem(response, 400, "bad_request")


def test_a_name_that_is_not_utf8_is_shown_escaped(http: httpx.Client, root: Path) -> None:
    """A folder stands for its one model, whatever bytes its name has; answers and metrics show them escaped."""
    (root / "bytes").mkdir()
    path = Path(os.fsdecode(os.fsencode(root / "bytes") + b"/\xff\n.gguf"))
    t0(path)
    assert [200, 200] == [response.status_code for response in ask_both(http, "bytes")]
    os.truncate(path, 10)
    for response in ask_both(http, "bytes"):
        body = require_problem(response, 422, "truncated")
        assert body["file"] == rf"{root}/bytes/\xff\n.gguf"
    assert http.get("/metrics").text.isascii()


def test_a_link_exchanged_while_it_is_opened_leads_nowhere_else(http: httpx.Client, root: Path, tmp_path: Path) -> None:
    """However a link swings between a model here and one outside, only the one here is ever read."""
    inside, outside = t0(root / "inside.gguf"), t0(tmp_path / "outside.gguf", 4)
    link, stop = root / "swinging.gguf", threading.Event()
    link.symlink_to(inside)

    def swing() -> None:
        new = root / "swinging.new"
        while not stop.is_set():
            for target in (outside, inside):
                new.symlink_to(target)
                new.rename(link)

    thread = threading.Thread(target=swing)
    thread.start()
    try:
        seen = set()
        for _ in range(100):
            response = http.post("/v1/plans", json={"model": "swinging.gguf"})
            body = response.json()
            seen.add((response.status_code, body["model"]["n_bytes"] if response.status_code == 200 else body["code"]))
    finally:
        stop.set()
        thread.join()
    assert seen <= {(200, 312_576), (404, "model_not_found"), (422, "file_changed")}
    assert (200, 312_576) in seen


def _without_rights() -> None:
    """Take from root, in a child, the right to read what it may not; nobody else has it."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), "the capability cannot be dropped")


@pytest.fixture(scope="module")
def humble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[httpx.Client, Path]]:
    """A daemon that the system refuses what its permissions do not give, and its root."""
    root = tmp_path_factory.mktemp("humble")
    flags = ("--model-roots", str(root), "--host-capacity-bytes", "1GiB")
    with running_daemon(*flags, before=_without_rights) as daemon, httpx.Client(base_url=daemon.url) as client:
        yield client, root


def test_what_may_not_be_read_is_forbidden(humble: tuple[httpx.Client, Path]) -> None:
    """A file without read permission, and one in a folder that may not be entered, are 403 `permission_denied`."""
    http, root = humble
    (root / "locked").mkdir()
    paths = [t0(root / "unreadable.gguf"), t0(root / "locked" / "m.gguf")]
    paths[0].chmod(0)
    (root / "locked").chmod(0)
    try:
        for path in paths:
            for response in ask_both(http, str(path)):
                assert str(path) == require_problem(response, 403, "permission_denied")["file"]
    finally:
        (root / "locked").chmod(0o700)


def test_a_tree_that_may_not_be_written_is_served_and_left_alone(humble: tuple[httpx.Client, Path]) -> None:
    """Models in a read-only tree load in every mode, and nothing appears beside them."""
    http, root = humble
    tree = root / "tree"
    tree.mkdir()
    t0(tree / "m.gguf").chmod(0o444)
    tree.chmod(0o555)
    before = (os.listdir(tree), tree.stat().st_mtime_ns)
    try:
        for mode in ("auto", "none", "mmap", "mlock", "mmap+mlock", "direct_io"):
            body = {"model": "tree/m.gguf", "load_mode": mode}
            response = http.post("/v1/handles", json=body, headers={"Prefer": "wait=10"})
            assert 200 == response.status_code, response.text
            http.delete(response.headers["location"])
        assert before == (os.listdir(tree), tree.stat().st_mtime_ns)
    finally:
        tree.chmod(0o700)


@pytest.mark.anyio
async def test_devices_are_no_models(small: Small) -> None:
    """Where a root holds device files, they are told by their kind and never read."""
    async with small(model_roots="/dev") as (client, _daemon):
        for name in ("zero", "null", "/dev/zero"):
            body = require_problem(await client.post("/v1/plans", json={"model": name}), 422, "not_regular_file")
            assert "a character device" == body["found"]


def test_a_fifo_blocks_nobody(http: httpx.Client, root: Path) -> None:
    """A FIFO is told by a look, before it is opened: every request is answered at once, and no thread is stuck."""
    os.mkfifo(root / "fifo.gguf")
    started = time.monotonic()
    for _ in range(10):
        for response in ask_both(http, "fifo.gguf"):
            require_problem(response, 422, "not_regular_file")
    assert time.monotonic() - started < 2


def test_a_linked_model_under_a_root_is_loaded(http: httpx.Client, root: Path) -> None:
    """A link that stays under the roots, as the caches of model hubs are full of, is followed."""
    (root / "blobs").mkdir()
    t0(root / "blobs" / "0123abcd")
    (root / "linked.gguf").symlink_to("blobs/0123abcd")
    assert [200, 200] == [response.status_code for response in ask_both(http, "linked.gguf")]

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.errors import AccessError, FileError, GgufdError, NotFoundError
from app.modelfile import opening
from app.modelfile.opening import open_regular
from app.modelfile.reader import read_model_file
from app.modelfile.text import shown
from app.modelfile.types import FileIdentity
from tests.builders import t0


def refusal(path: Path, roots: list[Path] | None = None) -> GgufdError:
    """The error that reading `path` gives."""
    with pytest.raises(GgufdError) as caught:
        read_model_file(path, roots=roots)
    return caught.value


@pytest.fixture
def stranger() -> Iterator[None]:
    """Run a test as a user without rights, where we are root; no rights bind root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


@pytest.mark.parametrize(
    "name",
    ["nothing.gguf", "no/such/folder/m.gguf", "m.gguf/m.gguf", "nul\0byte", "lone\ud800", "x" * 300, "x/" * 3000],
)
def test_missing_paths_are_not_found(tmp_path: Path, name: str) -> None:
    """A path that leads nowhere, whatever the reason, is model_not_found."""
    t0(tmp_path / "m.gguf")
    error = refusal(tmp_path / name)
    assert isinstance(error, NotFoundError)
    assert error.code == "model_not_found"


def test_a_link_to_itself_is_not_found(tmp_path: Path) -> None:
    """A circle of links is model_not_found, not a loop."""
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert refusal(tmp_path / "a").code == "model_not_found"


@pytest.mark.parametrize(
    "name",
    [
        "with space.gguf",
        "a%20b.gguf",
        "a#b?c&d.gguf",
        "new\nline.gguf",
        "tab\tquote'\".gguf",
        "caf\u00e9.gguf",
        "cafe\u0301.gguf",
        "模型.gguf",
        os.fsdecode(b"bytes\xff\xfe.gguf"),
        "-rf.gguf",
    ],
)
def test_strange_names_are_names(tmp_path: Path, name: str) -> None:
    """Any name the file system takes is read; when shown it is printable text that can be written as UTF-8."""
    path = t0(tmp_path / name)
    assert read_model_file(path).n_bytes == 312_576
    text = shown(path)
    assert text.isprintable()
    assert text.encode("utf-8")
    os.truncate(path, 10)
    error = refusal(path)
    assert error.facts["file"] == text
    assert text in error.message


def test_links_are_followed(tmp_path: Path) -> None:
    """A symbolic or hard link to a file is that file: same resolved path, same identity."""
    path = t0(tmp_path / "m.gguf")
    (tmp_path / "soft.gguf").symlink_to("m.gguf")
    os.link(path, tmp_path / "hard.gguf")
    soft, hard = read_model_file(tmp_path / "soft.gguf"), read_model_file(tmp_path / "hard.gguf")
    assert soft.path == tmp_path / "soft.gguf"
    assert soft.shards[0].path == path.resolve()
    assert soft.shards[0].identity == hard.shards[0].identity


def test_an_unreadable_file_is_said_to_be_so(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """A file without read permission is permission_denied, and so is one in a folder that may not be entered."""
    path = t0(tmp_path / "m.gguf")
    locked = tmp_path / "locked"
    locked.mkdir()
    t0(locked / "m.gguf")
    path.chmod(0)
    locked.chmod(0)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | stat.S_IXOTH | stat.S_IXGRP)
    request.getfixturevalue("stranger")
    for place in (path, locked / "m.gguf"):
        error = refusal(place)
        assert isinstance(error, AccessError)
        assert error.code == "permission_denied"
        assert error.facts["file"] == str(place)


def test_inside_the_roots(tmp_path: Path) -> None:
    """A file under a root is read, by its plain path, through dots, and through links that stay under a root."""
    root = tmp_path / "models"
    (root / "sub").mkdir(parents=True)
    path = t0(root / "sub" / "m.gguf")
    (root / "link.gguf").symlink_to(path)
    (tmp_path / "alias").symlink_to(root)
    for asked in (path, root / "link.gguf", root / "sub" / ".." / "sub" / "m.gguf", tmp_path / "alias/sub/m.gguf"):
        assert read_model_file(asked, roots=[tmp_path / "none", root]).shards[0].path == path.resolve()
    assert read_model_file(path, roots=[tmp_path / "alias"]).n_bytes == 312_576
    assert read_model_file(path, roots=[Path("/")]).n_bytes == 312_576


def test_outside_the_roots_looks_like_missing(tmp_path: Path) -> None:
    """Whatever the disguise, a file outside the roots gives the very answer of a missing one."""
    root = tmp_path / "models"
    root.mkdir()
    outside = t0(tmp_path / "secret.gguf")
    t0(tmp_path / "models-too.gguf")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    (root / "link.gguf").symlink_to(outside)
    (root / "up").symlink_to("..")
    (root / "deep").symlink_to(root / "up")
    disguises = [
        outside,
        root / ".." / "secret.gguf",
        root / "link.gguf",
        root / "up" / "secret.gguf",
        root / "deep" / "secret.gguf",
        tmp_path / "models-too.gguf",
        tmp_path / "folder",
        tmp_path / "fifo",
        Path("/proc/self/exe"),
        Path("/dev/zero"),
        Path("/proc/self/root") / str(outside).lstrip("/"),
    ]
    for asked in disguises:
        error = refusal(asked, [root])
        missing = refusal(asked.with_name("nothing-there"), [root])
        assert (error.code, set(error.facts)) == (missing.code, set(missing.facts)) == ("model_not_found", {"model"})
        assert error.message == missing.message.replace("nothing-there", asked.name)


def test_no_roots_at_all(tmp_path: Path) -> None:
    """An empty list of roots holds nothing; None stands for everywhere."""
    path = t0(tmp_path / "m.gguf")
    assert refusal(path, []).code == "model_not_found"
    assert str(refusal(path, [])).endswith(": no model roots are configured")
    assert str(refusal(path, [tmp_path / "elsewhere"])).endswith("m.gguf under the model roots")
    assert read_model_file(path, roots=None).n_bytes == 312_576


def test_what_was_checked_is_what_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path that is exchanged for a link out of the roots between check and reading does not lead out."""
    root = tmp_path / "models"
    root.mkdir()
    path = t0(root / "m.gguf")
    secret = t0(tmp_path / "secret.gguf", 4)
    plain = opening.under_roots

    def exchange(real: str, roots: list[Path]) -> bool:
        path.unlink()
        path.symlink_to(secret)
        return plain(real, roots)

    monkeypatch.setattr(opening, "under_roots", exchange)
    assert read_model_file(path, roots=[root]).n_bytes == 312_576  # the secret has 608,512


def test_a_fifo_keeps_no_thread(tmp_path: Path) -> None:
    """Asking for a FIFO that nobody writes to answers at once and leaves nothing waiting."""
    os.mkfifo(tmp_path / "m.gguf")
    answer: list[GgufdError] = []
    thread = threading.Thread(target=lambda: answer.append(refusal(tmp_path / "m.gguf")), daemon=True)
    thread.start()
    thread.join(1)
    assert not thread.is_alive()
    assert answer[0].code == "not_regular_file"


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    """Good files, bad ones and refusals by the roots all close what they opened."""
    good, bad = t0(tmp_path / "good.gguf"), tmp_path / "bad.gguf"
    bad.write_bytes(b"GGUF")
    os.mkfifo(tmp_path / "fifo")
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(5):
        read_model_file(good)
        for path, roots in ((bad, None), (tmp_path / "fifo", None), (tmp_path, None), (good, [tmp_path / "none"])):
            refusal(path, roots)
    assert before == set(os.listdir("/proc/self/fd"))


def test_a_file_cut_while_it_is_read(tmp_path: Path) -> None:
    """A file that shrinks between opening and reading is file_changed, naming the size."""
    path = t0(tmp_path / "m.gguf")
    with open_regular(path) as file:
        size = file.identity.size
        os.truncate(path, 100)
        with pytest.raises(FileError) as caught:
            file.read(50, 100)
    assert (caught.value.code, caught.value.facts["field"]) == ("file_changed", "size")
    assert (caught.value.facts["expected"], caught.value.facts["found"]) == (size, 100)


def test_a_file_that_is_shorter_than_its_size(tmp_path: Path) -> None:
    """A file system that gives fewer bytes than it promised is truncated, saying where."""
    path = t0(tmp_path / "m.gguf")
    with open_regular(path) as file:
        size = file.identity.size
        with pytest.raises(FileError) as caught:
            file.read(size - 10, 20)
    assert (caught.value.code, caught.value.facts["offset"], caught.value.facts["expected"]) == ("truncated", size, 10)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """The system's refusal to read is read_failed with the errno's name."""
    path = t0(tmp_path / "m.gguf")
    with open_regular(path) as file:
        os.dup2(os.open(tmp_path, os.O_RDONLY), file.fd)  # reading a folder fails with EISDIR
        with pytest.raises(FileError) as caught:
            file.read(0, 10)
    assert (caught.value.code, caught.value.facts["found"]) == ("read_failed", "EISDIR")


def test_identity_is_the_files(tmp_path: Path) -> None:
    """Device, inode, size and times are those of the file."""
    path = t0(tmp_path / "m.gguf")
    status = path.stat()
    assert read_model_file(path).shards[0].identity == FileIdentity(
        device=status.st_dev,
        inode=status.st_ino,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
    )

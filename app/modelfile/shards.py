"""Sets of files that are one model. Metadata decides what belongs together; names only say where to look."""

from collections.abc import Sequence
from pathlib import Path

from app.modelfile.header import read_header
from app.modelfile.limits import ReadLimits
from app.modelfile.opening import open_regular
from app.modelfile.types import ModelFile, Shard


def read_set(path: Path, limits: ReadLimits, roots: Sequence[Path] | None) -> ModelFile:
    """The whole model that `path` belongs to."""
    with open_regular(path, roots) as file:
        header = read_header(file, limits)
    shard = Shard(path=file.real, identity=file.identity, data_start=header.data_start)
    return ModelFile(
        path=path,
        version=header.version,
        alignment=header.alignment,
        metadata=header.metadata,
        tensors=header.tensors,
        shards=(shard,),
    )

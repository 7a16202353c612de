"""The one place that judges where tensors lie. A ModelFile exists only if its shards passed."""

from collections.abc import Sequence
from typing import NoReturn

from app.errors import Fact, FileError
from app.modelfile.text import brief
from app.modelfile.types import TensorInfo
from app.units import align_up


def validate(tensors: Sequence[TensorInfo], data_start: int, file_size: int, alignment: int, file: str) -> None:
    """Refuse offsets that are not the running padded sum, and tensors whose last real byte is past the file's end.

    `data_start`, `file_size` and the tensors' offsets are bytes from the start of the file `file`. Missing padding
    after the last tensor and bytes behind it are fine. Raises FileError `bad_offset` or `out_of_bounds`.
    """

    def fail(code: str, tensor: str, problem: str, expected: Fact, found: Fact) -> NoReturn:
        raise FileError(f"{file}: {problem}", code=code, file=file, tensor=tensor, expected=expected, found=found)

    if tensors and data_start > file_size:
        fail(
            "out_of_bounds",
            tensors[0].name,
            f"tensor data starts at {data_start} (alignment {alignment}), past the file's end of {file_size}",
            data_start,
            file_size,
        )
    due = 0
    for index, tensor in enumerate(tensors):
        offset = tensor.offset - data_start
        if offset != due:
            reason = f"not a multiple of {alignment}" if offset % alignment else "not where the tensor before it ends"
            fail(
                "bad_offset",
                tensor.name,
                f"tensors[{index}].offset ({brief(tensor.name)}): {offset} is {reason}, expected {due}",
                due,
                offset,
            )
        due += align_up(tensor.nbytes, alignment)
    for index, tensor in enumerate(tensors):
        end = tensor.offset + tensor.nbytes
        if end > file_size:
            fail(
                "out_of_bounds",
                tensor.name,
                f"tensors[{index}] ({brief(tensor.name)}): its {tensor.nbytes} bytes end at {end}, "
                f"past the file's end of {file_size}",
                end,
                file_size,
            )

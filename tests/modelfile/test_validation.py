import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import FileError
from app.ggml import BY_NAME
from app.modelfile.types import TensorInfo
from app.modelfile.validation import validate
from app.units import align_up


def laid_out(sizes: list[int], start: int, alignment: int) -> list[TensorInfo]:
    """Tensors of `sizes` bytes as a writer would lay them out from `start`."""
    tensors, offset = [], start
    for index, size in enumerate(sizes):
        tensors.append(
            TensorInfo(name=f"t{index}", type=BY_NAME["i8"], shape=(size,), shard=0, offset=offset, nbytes=size)
        )
        offset += align_up(size, alignment)
    return tensors


SIZES = st.lists(st.integers(0, 300), min_size=1, max_size=8)
ALIGNMENTS = st.sampled_from([1, 2, 8, 32, 64, 4096])


@given(sizes=SIZES, alignment=ALIGNMENTS, blocks=st.integers(0, 4), spare=st.integers(0, 100))
def test_a_good_layout_passes(sizes: list[int], alignment: int, blocks: int, spare: int) -> None:
    """Tensors laid out one after the other pass in any file that holds the last real byte."""
    start = blocks * alignment
    tensors = laid_out(sizes, start, alignment)
    validate(tensors, start, tensors[-1].offset + tensors[-1].nbytes + spare, alignment, "f")


@given(sizes=SIZES, alignment=ALIGNMENTS, data=st.data())
def test_a_file_that_is_too_short_is_refused(sizes: list[int], alignment: int, data: st.DataObject) -> None:
    """Any size below the last real byte's end is out_of_bounds, naming the first tensor it cuts."""
    tensors = laid_out(sizes, 0, alignment)
    end = max(tensor.offset + tensor.nbytes for tensor in tensors)
    if end == 0:
        return
    size = data.draw(st.integers(0, end - 1))
    with pytest.raises(FileError) as caught:
        validate(tensors, 0, size, alignment, "f")
    cut = next(tensor for tensor in tensors if tensor.offset + tensor.nbytes > size)
    assert (caught.value.code, caught.value.facts["tensor"]) == ("out_of_bounds", cut.name)


@given(sizes=SIZES, alignment=ALIGNMENTS, data=st.data())
def test_any_other_offset_is_refused(sizes: list[int], alignment: int, data: st.DataObject) -> None:
    """Moving any tensor, by any amount, is bad_offset with the offset that was due."""
    tensors = laid_out(sizes, 64, alignment)
    index = data.draw(st.integers(0, len(sizes) - 1))
    moved = data.draw(st.integers(0, 2**64).filter(lambda offset: offset != tensors[index].offset - 64))
    due = tensors[index].offset - 64
    tensors[index] = TensorInfo(
        name="moved", type=BY_NAME["i8"], shape=(sizes[index],), shard=0, offset=64 + moved, nbytes=sizes[index]
    )
    with pytest.raises(FileError) as caught:
        validate(tensors, 64, 2**70, alignment, "f")
    facts = caught.value.facts
    assert (caught.value.code, facts["tensor"]) == ("bad_offset", "moved")
    assert (facts["expected"], facts["found"]) == (due, moved)
    assert f"tensors[{index}].offset" in caught.value.message


def test_without_tensors_there_is_nothing_to_judge() -> None:
    """A file without tensors needs no data section."""
    validate([], 128, 100, 32, "f")


def test_tensors_without_bytes_need_the_data_sections_start() -> None:
    """Even tensors of no bytes are refused where the data section would start behind the file's end."""
    validate(laid_out([0, 0], 128, 32), 128, 128, 32, "f")
    with pytest.raises(FileError) as caught:
        validate(laid_out([0, 0], 128, 32), 128, 127, 32, "f")
    assert caught.value.code == "out_of_bounds"

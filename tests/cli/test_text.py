from hypothesis import given
from hypothesis import strategies as st

from app.cli.text import plural, printable, table, wrapped


@given(st.text(), st.integers(2, 50))
def test_nothing_printable_steers_a_terminal(text: str, limit: int) -> None:
    """Whatever a stranger wrote, it comes out on one line, without controls, within the limit."""
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= limit


def test_ordinary_words_stay_as_they_are() -> None:
    """Text that fits and is harmless is not changed."""
    assert "Ġ 模型 é" == printable("Ġ 模型 é")


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    """Cells are padded to the column, numbers to the right, nothing trails."""
    rows = [("a", "1", "x"), ("long", "100", "")]
    assert "  name    n\n  a       1  x\n  long  100" == table(rows, header=("name", "n", ""), right=(1,))
    assert "" == table([])


def test_one_is_singular() -> None:
    """One is one, all else is many."""
    assert ("1 tensor", "0 tensors") == (plural(1, "tensor"), plural(0, "tensor"))


@given(st.lists(st.text("ab", min_size=1, max_size=20), max_size=30), st.integers(30, 60))
def test_wrapped_lines_stay_within_the_width(words: list[str], width: int) -> None:
    """No word is lost or broken, and no line is longer than it may be."""
    lines = wrapped(" ".join(words), width, indent="  ", hanging="    ").splitlines()
    assert all(len(line) <= width for line in lines)
    assert words == " ".join(lines).split()


def test_the_last_column_is_wrapped_to_the_width() -> None:
    """A long cell goes on below itself, and the columns before it stay empty there."""
    rows = [("a", "1", "one two three four five six seven"), ("long", "22", "")]
    assert "  a      1  one two three four five\n            six seven\n  long  22" == table(rows, right=(1,), width=36)

"""Files that are readable and no model that can be loaded, each refused by its fact; odd ones that can be."""

from pathlib import Path

import pytest

from app.architectures.understanding import understand
from app.errors import MetadataError
from app.modelfile.reader import read_model_file
from app.modelfile.vocabulary import duplicate_tokens
from tests.corpus import Bad, fresh
from tests.corpus_good import GOOD, Good
from tests.corpus_models import MODELS
from tests.oracle import the_catalog


@pytest.mark.parametrize("bad", MODELS, ids=lambda bad: bad.name)
def test_each_file_that_is_no_model_is_refused_by_its_fact(bad: Bad, tmp_path: Path) -> None:
    """It gives its one code, a message that names file and fact, and the facts as fields."""
    model = read_model_file(fresh(bad, tmp_path))
    with pytest.raises(MetadataError) as caught:
        understand(model, the_catalog()).comparison.require()
    error = caught.value
    assert bad.code == error.code
    assert bad.says in error.message
    assert error.message.startswith(f"{error.facts['file']}: ")
    assert dict(bad.facts) == {name: error.facts.get(name) for name in bad.facts}
    assert len(error.message) < 600


@pytest.mark.parametrize("good", GOOD, ids=lambda good: good.name)
def test_each_odd_file_is_understood_with_a_warning(good: Good, tmp_path: Path) -> None:
    """A file that is odd and fine is a whole model; what is odd is said."""
    model = read_model_file(fresh(good, tmp_path))
    understanding = understand(model, the_catalog())
    understanding.comparison.require()
    warnings = (*understanding.warnings, *duplicate_tokens(model))
    assert [good.warns] * bool(good.warns) == [good.warns for warning in warnings if good.warns in warning]
    assert bool(warnings) == bool(good.warns)

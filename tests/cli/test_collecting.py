import gc
import importlib

import pytest

from app.cli.collecting import keep_what_is, no_collections


def test_collections_go_on_afterwards_whatever_happened() -> None:
    """Nothing is collected meanwhile; afterwards it is again, also when the start has failed."""
    with no_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ModuleNotFoundError), no_collections():
        importlib.import_module("app.nothing")
    assert gc.isenabled()


def test_what_is_kept_is_not_looked_at() -> None:
    """After it was said that all is kept, collections have next to nothing to go through."""
    try:
        keep_what_is()
        assert len(gc.get_objects()) < 1000 < gc.get_freeze_count()
    finally:
        gc.unfreeze()

import threading

import pytest

from app.errors import ConflictError
from app.residency.uses import Uses


def test_the_end_waits_for_uses_under_way() -> None:
    """Whoever ends the uses returns when the last one under way has ended, and not before."""
    uses, began, go_on, ended = Uses(), threading.Event(), threading.Event(), threading.Event()

    def use() -> None:
        with uses.held():
            began.set()
            assert go_on.wait(10)

    def end() -> None:
        uses.end()
        ended.set()

    threads = [threading.Thread(target=use), threading.Thread(target=end)]
    threads[0].start()
    assert began.wait(10)
    threads[1].start()
    assert not ended.wait(0.05)
    go_on.set()
    assert ended.wait(10)
    for thread in threads:
        thread.join()


def test_no_use_begins_after_the_end() -> None:
    """After the end a use is a ConflictError, however often; ending again is harmless."""
    uses = Uses()
    with uses.held(), uses.held():
        pass
    uses.end()
    uses.end()
    for _ in range(2):
        with pytest.raises(ConflictError) as caught, uses.held():
            pass
        assert "not_resident" == caught.value.code

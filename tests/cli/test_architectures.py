import json

import pytest

from app.architectures.registry import load_catalog
from app.main import main


def test_the_catalog_is_a_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Every architecture of the catalog has its line, and its object with `--json`."""
    names = [architecture.name for architecture in load_catalog()]
    assert 0 == main(["architectures"])
    lines = capsys.readouterr().out.splitlines()
    assert names == [line.split()[0] for line in lines[1 : len(names) + 1]]
    assert 0 == main(["architectures", "--json"])
    assert names == [one["name"] for one in json.loads(capsys.readouterr().out)]

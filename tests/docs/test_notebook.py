"""The notebook of the pages runs, cell by cell, in the order in which they stand."""

import ast
import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kgym_cli.platforms.embedded_platform import Platform
from tests.conftest import ROOT
from tests.docs.test_commands import data, worked

__all__ = ["data", "worked"]


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_notebook_runs_from_the_first_cell_to_the_last(
    worked: Platform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    cells = json.loads((ROOT / "docs" / "research.ipynb").read_text())["cells"]
    assert len(cells) == 20
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KGYM_SERVER", worked.url)
    names: dict[str, Any] = {}
    for cell in cells:
        assert not cell.get("outputs")
        if cell["cell_type"] == "code":
            flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            ran = eval(compile("".join(cell["source"]), "cell", "exec", flags), names)
            if ran is not None:
                asyncio.run(ran)
    assert len(names["chosen"]) == 2
    assert "agent,class,bugs,setups,attempts" in (shown := capsys.readouterr().out)
    assert "█" in shown

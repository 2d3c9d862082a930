"""Imports go one way, from room to room: pyproject.toml says which."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

AGENTS = ("api", "client", "bugs")
HEAVY = {"drgn", "fastapi", "numpy", "paramiko", "sqlalchemy", "structlog", "tree_sitter"}


def test_imports_go_one_way() -> None:
    linter = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [linter, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.thorough
@pytest.mark.parametrize("room", AGENTS)
def test_what_an_agent_imports_is_light(room: str) -> None:
    folder = ROOT / "common/kgym" / room
    names = [
        ".".join(path.relative_to(ROOT / "common").with_suffix("").parts)
        for path in sorted(folder.rglob("*.py"))
        if path.name != "__init__.py"
    ]
    assert names
    program = f"import sys, {', '.join(names)}; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    loaded = set(done.stdout.split())
    assert not loaded & HEAVY
    heavy = ("kgym.host", "kgym.worker", "kgym.trace")
    assert not {name for name in loaded if name.startswith(heavy)}

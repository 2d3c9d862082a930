"""`./run bench trace`: what it measures in processes of its own."""

from pathlib import Path
from subprocess import CalledProcessError

import pytest

from tests.bench import trace

# Parsing and minimising are tested beside this: here it is the measuring program itself.
pytestmark = pytest.mark.exhaustive


def test_both_forms_of_a_trace_are_measured(tmp_path: Path) -> None:
    figures = trace.one_size(20_000, tmp_path)
    for form in ("ring", "text"):
        assert figures[form]["records"] == 20_000
        assert figures[form]["frames"] == len(trace.STACK)


def test_what_the_measuring_process_says_when_it_fails_is_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CalledProcessError):
        trace.measured(tmp_path / "nowhere.dat")
    assert "nowhere.dat" in capfd.readouterr().err

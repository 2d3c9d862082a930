"""The pages are built without a warning, and know every reason and every file that they name."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path

import pytest

from tests.conftest import ROOT
from tests.tables import rows

# The exceptions that have a reason.
ERRORS = {name for (name,) in rows(__file__, "errors.txt")}


# The first argument of an error, or its `reason`; or what another's exception stands for.
REASON = re.compile(
    rf"""\b(?:{"|".join(sorted(ERRORS))})\((?:[^()]*?\breason=|\s*)"([^"]+)\""""
    r"""|\bexceptions\.\w+,\s*"([^"]+)\"""",
    re.ASCII,
)


def reasons() -> Iterator[tuple[str, Path]]:
    """Yield each reason that stands in the code for an error or a failure.

    By words: the syntax trees of Python 3.11 fail with SystemError while another thread of
    the tests makes one.
    """
    for root in ("common", "services"):
        for path in sorted((ROOT / root).rglob("*.py")):
            for match in REASON.finditer(path.read_text()):
                yield match[1] or match[2], path


def test_every_reason_of_an_error_is_on_the_page_of_troubles() -> None:
    page = (ROOT / "docs" / "trouble.md").read_text()
    explained = {
        word
        for line in page.splitlines()
        if line.startswith("| `")
        for word in re.findall(r"`([a-z_]+)`", line.split("|")[1])
    }
    known = dict(reasons())
    assert len(known) > 100
    missing = {reason: str(path) for reason, path in known.items() if reason not in explained}
    assert not missing, f"docs/trouble.md has to say what to do about {missing}"


def test_every_file_that_architecture_names_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = set(re.findall(r"`([\w./-]+\.(?:py|c|S|mk|md|toml|config))`", text))
    assert len(named) > 80
    files = [
        str(path.relative_to(ROOT))
        for folder in ("common", "services", "tests", "configs", "docs", "docker")
        for path in (ROOT / folder).rglob("*.*")
    ]
    missing = {
        name
        for name in named
        if not any(f"/{file}".endswith(f"/{name}") for file in [*files, "pyproject.toml"])
    }
    assert not missing, f"ARCHITECTURE.md names files that are not there: {missing}"


def test_every_room_is_on_the_map() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text().partition("## The way")[0]
    roots = [ROOT / "common" / "kgym", *sorted((ROOT / "services").glob("kgym_*"))]
    rooms = {path.parent for root in roots for path in root.glob("*/__init__.py")}
    assert len(rooms) > 20
    assert [room for room in rooms if f"`{room.name}/`" not in text] == []


def test_every_invariant_names_the_file_that_holds_it() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    table = text.partition("\n| invariant |")[2].partition("\n\n")[0]
    rows = table.splitlines()[2:]
    assert len(rows) > 20
    assert [row for row in rows if not re.search(r"`[\w/]+\.py`", row)] == []


@pytest.mark.slow
def test_the_reference_can_be_read_on_the_repositorys_web_page(tmp_path: Path) -> None:
    program = ROOT / "docs" / "reference.py"
    reference = run_path(str(program), run_name="reference")
    reference["write"](tmp_path)
    made: dict[str, str] = reference["for_readers"](tmp_path)
    assert len(made) == 7
    texts = {path.name: path.read_text() for path in (program.with_suffix("")).glob("*.md")}
    assert texts == made, "docs/reference is not of this code: ./run docs"
    for path in program.parent.glob("*.md"):
        assert "{include}" not in path.read_text(), path.name


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_the_pages_are_built_without_a_warning(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"),
            *("-b", "html", "-d", tmp_path / "doctrees", ROOT / "docs", tmp_path / "html"),
        ],
        capture_output=True,
        check=False,
        text=True,
        timeout=560,
    )
    assert done.returncode == 0, done.stderr
    commands = (tmp_path / "html" / "command-line.html").read_text()
    assert "kgym bug reproduce" in commands
    assert "/v1/jobs/{job_id}/events" in (tmp_path / "html" / "rest.html").read_text()

"""`kgym monitor shoot`: a picture of each page, and those that README and the docs show."""

import json
import os
import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from kgym.crash.report.parser import parse
from kgym.errors import UserError
from tests.conftest import ROOT
from tests.demo import screenshots
from tests.demo.monitor_pages import NAMES
from tests.demo.showcase import CONSOLES

IMAGES = ROOT / "docs" / "images"
WIDTH = 1200
MOST_BYTES = 150_000
TEXTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def shoot(folder: Path, *words: str, path: str = os.environ["PATH"]) -> tuple[int, str]:
    """Run the command; return its status, and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", "kgym_cli", "monitor", "shoot", folder, *words],
        env={**os.environ, "PATH": path},
        capture_output=True,
        check=False,
        text=True,
        timeout=580,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, done.stdout + done.stderr


def pixels(png: bytes) -> tuple[int, int, set[bytes]]:
    """Return width, height and the different rows of a PNG that is small."""
    width, height = struct.unpack(">II", png[16:24])
    at = png.index(b"IDAT") + 4
    rows = zlib.decompressobj().decompress(png[at:])
    assert len(rows) == (width + 1) * height
    return width, height, {rows[at : at + width + 1] for at in range(0, len(rows), width + 1)}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "names", [NAMES[:1], pytest.param(NAMES, marks=pytest.mark.exhaustive)], ids=["one", "all"]
)
def test_a_page_is_taken_as_it_has_to_look(tmp_path: Path, names: Sequence[str]) -> None:
    try:
        screenshots.chromium()
    except UserError as error:
        pytest.skip(str(error))
    words = [word for name in names for word in ("--page", name)]
    size = ("--width", str(WIDTH), "--height", "900")
    status, output = shoot(tmp_path, *size, "--theme", "dark", "--json", *words)
    assert status == 0, output
    answers = json.loads(output.splitlines()[0])
    assert [answer["page"] for answer in answers] == list(names)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{n}.png" for n in names)
    for answer in answers:
        png = Path(answer["file"]).read_bytes()
        width, height, rows = pixels(png)
        assert (width, height, len(png)) == (WIDTH, answer["height"], answer["size"]), answer
        assert len(rows) > 60, f"{answer['page']} is all but blank"
        assert len(png) < MOST_BYTES


def test_the_pictures_of_the_docs_are_those_of_the_pages() -> None:
    there = {path.stem: path.read_bytes() for path in IMAGES.iterdir()}
    assert sorted(there) == sorted(NAMES), "see docs/monitor.md: how they are made"
    for name, png in there.items():
        width, _, rows = pixels(png)
        assert (width, len(png) < MOST_BYTES, len(rows) > 60) == (WIDTH, True, True), name
    assert sum(map(len, there.values())) < 5 << 18


def test_every_picture_is_shown_with_a_text_in_its_place() -> None:
    shown: set[str] = set()
    for page in TEXTS:
        for alt, name in re.findall(r"!\[([^]]*)\]\((?:docs/)?images/([^)]*)\)", page.read_text()):
            assert len(alt) > 20, f"{page.name}: {name} needs a text"
            shown.add(name)
    assert shown == {f"{name}.png" for name in NAMES}


@pytest.mark.thorough
def test_without_a_browser_it_says_what_to_install(tmp_path: Path) -> None:
    status, errors = shoot(tmp_path / "none", path=str(tmp_path))
    assert (status, "apt-get install chromium" in errors) == (2, True), errors


@pytest.mark.thorough
def test_a_page_that_is_not_known_is_refused(tmp_path: Path) -> None:
    status, errors = shoot(tmp_path, "--page", "nonsense")
    assert (status, "there are: overview," in errors) == (2, True), errors


def test_the_consoles_of_the_demo_show_the_crashes_of_its_bugs() -> None:
    for title, console in CONSOLES.items():
        report = parse(console, running=True)
        assert report is not None
        assert report.title == title

"""The share of syzkaller's corpus, and of real reproducer runs, that is read right.

The aims are shares of all cases: single cases are no specification.
"""

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kgym.report import guilty_file, parse

DATA = Path(__file__).parents[2].parent / "shared" / "data"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="no reference data beside the checkout")


@dataclass
class Case:
    """One file of the corpus; the format is described in its README."""

    log: bytes
    report: bytes | None
    header: dict[str, str] = field(default_factory=dict)
    alt: list[str] = field(default_factory=list)


def read_case(path: Path) -> Case:
    head, _, log = path.read_bytes().replace(b"\r", b"").partition(b"\n\n")
    log, found, report = log.partition(b"\n\nREPORT:\n")
    case = Case(log + b"\n" * bool(found), report if found else None)
    for line in head.decode().splitlines():
        key, _, value = line.partition(":")
        if key == "ALT":
            case.alt.append(value.strip())
        elif not line.startswith("#"):
            case.header[key] = value.strip()
    return case


def cases() -> Iterator[Case]:
    return map(read_case, sorted((DATA / "syzkaller_reports" / "report").iterdir()))


@pytest.fixture(scope="module")
def shares() -> dict[str, float]:
    """The share of crashes read right, by what was read."""
    right: Counter[str] = Counter()
    crashes = 0
    for case in cases():
        if not case.header.get("TITLE"):
            right["silent"] += parse(case.log) is None
            right["healthy"] += 1
            continue
        crashes += 1
        report = parse(case.log)
        if report is None:
            continue
        right["title"] += report.title == case.header["TITLE"]
        right["alt"] += sorted(report.alt_titles) == sorted(case.alt)
        right["type"] += report.type == case.header.get("TYPE", "")
        for flag in ("corrupted", "suppressed", "panicked"):
            right[flag] += getattr(report, flag) == (case.header.get(flag.upper()) == "Y")
        right["text"] += case.report is None or report.text.encode() == case.report
        start = case.header.get("START", "").encode()
        right["start"] += not start or case.log.index(start) == report.start
    result = {name: count / crashes for name, count in right.items()}
    result["silent"] = right["silent"] / right["healthy"]
    return result


@needs_data
@pytest.mark.parametrize(
    ("part", "aim"),
    [
        ("silent", 1.0),
        ("title", 0.97),
        ("alt", 0.97),
        ("type", 0.97),
        ("corrupted", 0.95),
        ("suppressed", 0.99),
        ("panicked", 0.99),
        ("text", 0.99),
        ("start", 0.99),
    ],
)
def test_the_corpus_is_read_right(shares: dict[str, float], part: str, aim: float) -> None:
    assert shares[part] >= aim


@needs_data
def test_the_guilty_file_is_found_in_nine_of_ten_reports() -> None:
    right = []
    for path in (DATA / "syzkaller_reports" / "guilty").iterdir():
        head, _, report = path.read_text().partition("\n\n")
        right.append(guilty_file(report) == head.partition("FILE: ")[2].strip())
    assert sum(right) >= 0.9 * len(right)


@needs_data
def test_logs_of_real_reproducer_runs_have_syzkallers_titles() -> None:
    logs = DATA / "kgym_crash_logs"
    titles: dict[str, str] = json.loads((logs / "titles.json").read_text())
    wrong = {}
    for name, title in titles.items():
        report = parse(gzip.decompress((logs / f"{name}.log.gz").read_bytes()))
        if report is None or report.title != title:
            wrong[title] = report and report.title
    assert len(wrong) <= 0.03 * len(titles), wrong


@needs_data
def test_consoles_of_the_fixed_kernels_hold_no_crash() -> None:
    for bug in (DATA / "syzbot_bugs").glob("*/title.txt"):
        crash = parse((bug.parent / "console.log").read_bytes())
        assert crash is not None
        assert crash.title == bug.read_text().strip()
        assert parse((bug.parent / "console.fixed.log").read_bytes()) is None

"""`kgym source`, on a bundle of the small make tree."""

from pathlib import Path

import pytest

from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Kgym
from tests.cli.test_check import DIFF, bundle, written

pytestmark = pytest.mark.thorough

__all__ = ["bundle"]


def test_a_bugs_source_is_read_listed_and_searched(
    kgym: Kgym, platform: Platform, bundle: Path, tmp_path: Path
) -> None:
    read = kgym("source", "read", bundle, "kernel/watch_queue.c", "--lines", "7-10")
    assert read.status == 0, read.err
    assert "\tif (type >= 100)\n" in read.out  # with the bug
    assert kgym("source", "ls", bundle, "kernel").out.splitlines()[-1] == "watch_queue.c"
    symbol = kgym("source", "symbol", bundle, "watch_filter", "--json").json
    assert [definition["path"] for definition in symbol["definitions"]] == ["kernel/watch_queue.c"]
    patch = written(tmp_path / "my.patch", DIFF % "type >= 55")
    words = ("type >= [0-9]+", "--glob", "*.c", "--patch", patch)
    searched = kgym("source", "search", bundle, *words)
    assert searched.out == "kernel/watch_queue.c:10: \tif (type >= 55)\n"
    jobs = kgym("job", "list", "--json").json
    assert len(jobs) == 1  # all looks went by one job
    by_number = kgym("source", "search", jobs[0]["id"], "type >= 100")
    assert by_number.out == "kernel/watch_queue.c:10: \tif (type >= 100)\n"


def test_what_is_wrong_is_said(kgym: Kgym, platform: Platform, bundle: Path) -> None:
    missing = kgym("source", "read", bundle, "watch_queue.c", "--json")
    assert (missing.status, missing.json["reason"]) == (2, "file_not_found")
    assert "kernel/watch_queue.c" in missing.json["detail"]
    assert kgym("source", "read", bundle, "Makefile", "--lines", "5-x").status == 2
    assert kgym("source", "read", bundle, "Makefile", "--step", 1).status == 2
    assert kgym("source", "search", bundle, "(", "--json").json["reason"] == "bad_pattern"
    assert kgym("source", "ls", 99, "--json").json["reason"] == "job_not_found"

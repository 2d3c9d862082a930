"""`kgym syzkaller build`."""

from pathlib import Path

import pytest

from tests.cli.conftest import Kgym

COMMIT = "1d849ab4d892af13a249f75628790b47e42b7c74"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nothing"], "names no source of syzkaller"),
        ([COMMIT[:12]], "names no source of syzkaller"),
        (["https://example.org/x@main", "--commit", "main"], "is not a full commit id"),
        ([__file__], "--commit"),
    ],
)
def test_what_names_no_source_is_refused(kgym: Kgym, words: list[str], message: str) -> None:
    done = kgym("syzkaller", "build", *words, "--json")
    assert (done.status, done.json["reason"]) == (2, "bad_option")
    assert message in done.json["detail"]


@pytest.mark.thorough
def test_a_source_that_is_none_is_told(kgym: Kgym, tmp_path: Path) -> None:
    tarball = tmp_path / "syzkaller.tar"
    tarball.write_bytes(b"no tar")
    output = tmp_path / "programs"
    done = kgym("syzkaller", "build", tarball, "--commit", COMMIT, "--output", output, "--json")
    assert done.status == 2
    assert done.json["failure"]["reason"] == "source_unreadable"
    assert (done.json["folder"], done.json["commit"]) == (None, None)
    assert not output.exists()


@pytest.mark.thorough
def test_what_workers_have_is_found_and_handed_out(
    kgym: Kgym, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    (own / COMMIT).mkdir(parents=True)
    for name in ("syz-execprog", "syz-executor", "syz-mutate"):
        (own / COMMIT / name).write_text(name)
    monkeypatch.setenv("KGYM_SYZKALLER", str(own))
    output = tmp_path / "programs"
    done = kgym("syzkaller", "build", COMMIT, "--output", output, "--json")
    assert done.status == 0, done
    assert done.json["source_identity"] == "worker"
    assert done.json["folder"] == str(output / COMMIT)
    assert (output / COMMIT / "syz-executor").read_text() == "syz-executor"
    assert (output / COMMIT / "syz-mutate").read_text() == "syz-mutate"
    assert [path.name for path in output.iterdir()] == [COMMIT]

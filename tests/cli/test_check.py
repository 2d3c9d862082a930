"""`kgym check`, on a bundle of the small make tree."""

import gzip
import re
import shutil
import subprocess
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from kgym.api.steps import TarballSource
from tests.bundles import REGRESS, small_bundle, tarball
from tests.cli.conftest import Kgym
from tests.conftest import ROOT
from tests.tables import json_rows, rows

pytestmark = pytest.mark.thorough

DIFF = Path(__file__).with_name("condition.diff").read_text()


@pytest.fixture
def bundle(tmp_path: Path, fake_source: TarballSource) -> Path:
    """A bug that is brought back by an edit, as the shipped ones are."""
    return small_bundle(tmp_path / "bundle", tarball(fake_source), REGRESS)


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return written(tmp_path / "good.patch", DIFF % "type >= WATCH_TYPE__NR")


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return written(tmp_path / "bad.patch", DIFF % "kind >= 2")


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_patches_are_checked_on_the_kernel_that_has_the_bug(
    kgym: Kgym, bundle: Path, good: Path
) -> None:
    done = kgym("check", bundle, good, "--json")
    assert done.status == 0, done.err
    assert done.json["bug"] == "bundle"
    (patch,) = done.json["patches"]
    assert (patch["name"], patch["outcome"]) == ("good.patch", "compiles")
    assert [function["name"] for function in patch["functions"]] == ["watch_filter"]


def test_people_get_a_table_and_the_compilers_words_on_what_failed(
    kgym: Kgym, bundle: Path, good: Path, bad: Path, tmp_path: Path
) -> None:
    stale = written(tmp_path / "stale.patch", DIFF.replace("100", "7") % "0")
    done = kgym("check", bundle, good, bad, stale)
    assert done.status == 1, done.err
    for words in (
        "compiles",
        "does_not_compile",
        "does_not_apply",
        "kernel/watch_queue.c:10:13: error: 'kind' undeclared",
        "hunk 1 of kernel/watch_queue.c (line 8) does not apply",
    ):
        assert words in done.out


def test_what_was_checked_is_answered_at_once_unless_it_shall_be_fresh(
    kgym: Kgym, bundle: Path, good: Path
) -> None:
    memoised = [
        kgym("check", bundle, good, "--json", *more).json["patches"][0]["memoised"]
        for more in ((), (), ("--fresh",))
    ]
    assert memoised == [False, True, False]


@pytest.mark.parametrize(
    ("bug", "patch", "complaint"),
    [
        ("no-such-bug", "good.patch", "there is no bug `no-such-bug`"),
        ("watch-queue-filter", "no-such.patch", "no-such.patch"),
    ],
)
def test_bad_input_gives_status_2(kgym: Kgym, bug: str, patch: str, complaint: str) -> None:
    done = kgym("check", bug, patch)
    assert (done.status, complaint in done.err) == (2, True), done.err
    assert kgym("check", bug).status == 2


def test_patches_are_taken_as_people_have_them_and_a_bad_one_stands_alone(
    kgym: Kgym, bundle: Path, tmp_path: Path
) -> None:
    text = DIFF % "type >= WATCH_TYPE__NR"
    spaced = text.replace("\t\treturn", " " * 16 + "return")
    nothing = DIFF.replace("(%s)", "(type >= 100)")
    mails = {
        "latin-1": ("From: J\xfcrgen\n\n" + text).encode("latin-1"),
        "utf-16": text.encode("utf-16"),
        "crlf": text.replace("\n", "\r\n").encode(),
        "bom": text.encode("utf-8-sig"),
        "mnemonic": text.replace("a/k", "i/k").replace("b/k", "w/k").encode(),
        "trees": text.replace("a/k", "linux.orig/k").replace("b/k", "linux/k").encode(),
        "zeroes": text.encode() + b"\0",
        "spaced": spaced.encode(),
        "nothing": nothing.encode(),
    }
    paths = [tmp_path / name for name in mails]
    for path in paths:
        path.write_bytes(mails[path.name])
    done = kgym("check", bundle, *paths, "--json")
    assert done.status == 2, done.err
    outcomes = {
        patch["name"]: (patch["outcome"], patch["reason"]) for patch in done.json["patches"]
    }
    assert list(outcomes) == list(mails)
    assert {name: outcomes[name][0] for name in ("zeroes", "spaced", "nothing")} == {
        "zeroes": "refused",
        "spaced": "does_not_apply",
        "nothing": "refused",
    }
    bad = {name: words for name, (outcome, words) in outcomes.items() if outcome != "compiles"}
    assert list(bad) == ["zeroes", "spaced", "nothing"]
    assert "contains NUL bytes" in bad["zeroes"]
    assert "with other white space" in bad["spaced"]
    assert "changes nothing" in bad["nothing"]


def test_a_file_that_goes_or_is_renamed_is_missed_by_what_needs_it(
    kgym: Kgym, bundle: Path, tmp_path: Path
) -> None:
    lines = (ROOT / "tests/fakelinux/kernel/fork.c").read_text().splitlines(keepends=True)
    name = "diff --git a/kernel/fork.c b/kernel/{}\n"
    gone = name.format("fork.c") + "deleted file mode 100644\n--- a/kernel/fork.c\n+++ /dev/null\n"
    gone += f"@@ -1,{len(lines)} +0,0 @@\n" + "".join(f"-{line}" for line in lines)
    moved = name.format("moved.c") + "similarity index 100%\n"
    moved += "rename from kernel/fork.c\nrename to kernel/moved.c\n"
    patches = [written(tmp_path / "gone", gone), written(tmp_path / "moved", moved)]
    done = kgym("check", bundle, *patches, "--json")
    assert done.status == 1, done.err
    for patch in done.json["patches"]:
        assert patch["outcome"] == "does_not_compile", patch
        assert "No rule to make target 'kernel/fork.o'" in patch["output"]


def test_what_is_no_unified_diff_is_called_what_it_is(
    kgym: Kgym, bundle: Path, tmp_path: Path
) -> None:
    before, after = (ROOT / "tests/fakelinux/kernel").glob("[fs]*.c")
    diffs = {
        way: subprocess.run(
            ["diff", *options, before, after], capture_output=True, text=True, check=False
        ).stdout
        for way, options in (("context", ["-c"]), ("plain", []), ("unified", ["-u"]))
    }
    headless = diffs["unified"].split("\n", 2)[2]
    binary = "diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n"
    saved = (DIFF % "type >= WATCH_TYPE__NR").replace("a/kernel/watch_queue.c", "kernel/w.c.orig")
    texts = {
        "context": (diffs["context"], "is a context diff; only unified ones are accepted"),
        "plain": (diffs["plain"], "is a diff without context; only unified ones are accepted"),
        "headless": (headless, "a hunk of an unknown file"),
        "binary": (binary, "x is binary: remove it"),
        "words": ("Change the limit.\n", "holds no diff"),
        "saved": (saved.replace("w.c", "watch_queue.c"), ""),
    }
    paths = [written(tmp_path / name, text) for name, (text, _) in texts.items()]
    checks = {
        check["name"]: check for check in kgym("check", bundle, *paths, "--json").json["patches"]
    }
    for name, (_, words) in texts.items():
        wanted = "refused" if words else "compiles"
        assert checks[name]["outcome"] == wanted, checks[name]
        assert words in checks[name]["reason"]


@pytest.mark.parametrize(("pattern", "line", "complaint"), rows(__file__, "bad_bundles.tsv"))
def test_a_bad_bundle_is_told_in_one_line(
    kgym: Kgym, bundle: Path, good: Path, pattern: str, line: str, complaint: str
) -> None:
    text = (bundle / "bug.toml").read_text()
    written(bundle / "bug.toml", re.sub(f"(?m){pattern}", line, text))
    for words in (["check", bundle, good], ["bug", "reproduce", bundle]):
        done = kgym(*words)
        assert (done.status, len(done.err.splitlines())) == (2, 1), done.err
        assert complaint in done.err


def git(folder: Path, *words: str) -> None:
    own = ("-c", "user.name=t", "-c", "user.email=t@localhost")
    subprocess.run(["git", "-C", folder, *own, *words], check=True, timeout=60)


@pytest.mark.usefixtures("platform")
def test_a_repository_beside_the_bundle_is_a_source_and_a_missing_one_is_told_once(
    kgym: Kgym, bundle: Path, good: Path, tmp_path: Path
) -> None:
    linux = tmp_path / "linux"
    shutil.copytree(ROOT / "tests/fakelinux", linux)
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-q", "-m", "x"]):
        git(linux, *words)
    text = (bundle / "bug.toml").read_text()
    for place, status in (("../linux", 0), ("../nowhere", 2)):
        named = f'git = "{place}"\ncommit = "HEAD"\n'
        (bundle / "bug.toml").write_text(re.sub("(?m)^tarball.*\n^sha256.*\n", named, text))
        done = kgym("check", bundle, good)
        assert (done.status, "Traceback" in done.err) == (status, False), done.err
    assert f"{tmp_path}/nowhere is no repository" in done.err
    assert done.err.count("running") == 1


@pytest.mark.usefixtures("platform")
def test_a_compiler_that_is_not_here_is_told_once(kgym: Kgym, bundle: Path, good: Path) -> None:
    text = (bundle / "bug.toml").read_text()
    (bundle / "bug.toml").write_text(text.replace("base =", 'compiler = "gcc-99"\nbase ='))
    done = kgym("check", bundle, good)
    assert (done.status, done.err.count("no worker has gcc-99; there are ")) == (2, 1), done.err
    assert "running" not in done.err


@pytest.mark.usefixtures("platform")
@pytest.mark.parametrize(
    ("text", "status", "sentence"),
    json_rows(__file__, "unusable_patches.jsonl"),
    ids=["empty", "words", "binary", "missing", "does not apply", "does not compile"],
)
def test_a_patch_that_cannot_be_tried_has_one_status_and_one_sentence_and_crashes_nothing(
    kgym: Kgym, bundle: Path, tmp_path: Path, text: str | None, status: int, sentence: str
) -> None:
    patch = tmp_path / "x.patch"
    if text is not None:
        written(patch, text)
    commands = [["check", bundle, patch], ["bug", "reproduce", bundle, "--fix", patch]]
    commands += [["run-kernel", "--bug", bundle, "--patch", patch]] if not text else []
    for words in commands:
        done = kgym(*words)
        assert done.status == status, (words, done.out, done.err)
        assert sentence in done.out + done.err, (words, done.out, done.err)
        if status == 2:
            assert (done.out, len(done.err.splitlines())) == ("", 1), (words, done.out, done.err)
    if text and status == 1:
        assert {"check"} == {
            step["kind"] for job in kgym("job", "list", "--json").json for step in job["steps"]
        }


@pytest.mark.usefixtures("platform")
def test_a_program_that_does_not_compile_costs_no_kernel(kgym: Kgym, bundle: Path) -> None:
    written(bundle / "repro.c", "int main(void) { return nothing; }\n")
    for command in ("reproduce", "calibrate"):
        done = kgym("bug", command, bundle, "--json")
        assert done.status == 2
        assert "the reproducer does not compile: reproducer.c:1: 'nothing'" in done.err
    assert "CC" not in done.err


@pytest.mark.usefixtures("platform")
def test_a_tree_of_this_machine_is_taken_as_it_is(
    kgym: Kgym, bundle: Path, good: Path, tmp_path: Path
) -> None:
    linux, planted = tmp_path / "linux", tmp_path / "planted"
    shutil.copytree(ROOT / "tests/fakelinux", linux)
    (linux / ".gitignore").write_text("*.o\nlib/*\n")
    (linux / "kernel/fork.o").write_text("of a build")
    git(linux, "init", "-q")
    git(linux, "add", "-A", "-f", "lib")
    git(linux, "config", "core.fsmonitor", f"touch {planted}")
    text = re.sub("(?m)^sha256.*$", "", (bundle / "bug.toml").read_text())
    (bundle / "bug.toml").write_text(re.sub("(?m)^tarball.*$", 'tree = "../linux"', text))
    entries = []
    for change in ("", "", "/* edited, and not committed */\n"):
        with (linux / "kernel/fork.c").open("a") as file:
            file.write(change)
        done = kgym("check", bundle, good, "--json")
        assert done.status == 0, done.err
        entries.append(done.json["tree"])
    assert entries[0] == entries[1] != entries[2]
    assert not planted.exists()
    (linux / "Kconfig").unlink()
    done = kgym("check", bundle, good)
    assert (done.status, "linux is not a kernel's source" in done.err) == (2, True)


@pytest.mark.thorough
def test_mails_and_binary_files_are_taken_too(kgym: Kgym, bundle: Path, tmp_path: Path) -> None:
    text = DIFF % "type >= WATCH_TYPE__NR"
    mail = "Subject: [PATCH] x\nContent-Transfer-Encoding: base64\n\n"
    mail += b64encode(text.encode()).decode()
    binary = f"Binary files a/logo.png and b/logo.png differ\n{text}"
    paths = [written(tmp_path / "x.eml", mail), written(tmp_path / "logo.diff", binary)]
    done = kgym("check", bundle, *paths, "--json")
    assert [patch["outcome"] for patch in done.json["patches"]] == ["compiles", "refused"]
    assert "logo.png is binary: remove it" in done.json["patches"][1]["reason"]
    done = kgym("check", bundle, paths[1], "--drop-binaries")
    assert done.status == 0, done.err
    assert "note: logo.diff: logo.png is binary: left out" in done.err
    alone = kgym("check", bundle, written(tmp_path / "words.diff", "> --- a/x\n> +++ b/x\n"))
    assert (alone.status, "quotation" in alone.err) == (2, True)


@pytest.mark.thorough
def test_the_url_of_a_mail_is_fetched_by_a_worker_that_may(
    kgym: Kgym, bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = DIFF % "type >= WATCH_TYPE__NR"
    mbox = f"From a Thu Jan  1 00:00:00 1970\nSubject: [PATCH v2] Fix it\n\nWhy.\n---\n{text}\n"

    class Lore(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/all/1@x/t.mbox.gz" else 404)
            self.end_headers()
            self.wfile.write(gzip.compress(mbox.encode()))

    with ThreadingHTTPServer(("127.0.0.1", 0), Lore) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/all/1@x/"
        refused = kgym("check", bundle, url)
        assert (refused.status, "KGYM_PATCH_HOSTS" in refused.out) == (2, True)
        monkeypatch.setenv("KGYM_PATCH_HOSTS", f"127.0.0.1:{server.server_port}")
        monkeypatch.setenv("KGYM_SOURCE_NETWORKS", "127.0.0.0/8")
        done = kgym("check", bundle, url, "--json")
        server.shutdown()
    assert done.status == 0, done.err
    (patch,) = done.json["patches"]
    assert (patch["name"], patch["outcome"]) == (url, "compiles")

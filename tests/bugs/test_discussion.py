"""The mails on a bug that a model may read: no fix, nothing later, and none in a benchmark."""

import asyncio
from pathlib import Path

import pytest

from kgym.api.agent.nodes import Crash
from kgym.api.agent.strategy import Cycle, Forest, Strategy, Tool
from kgym.bugs import bundle
from kgym.bugs.bug import Bug
from kgym.bugs.discussion_tools import DiscussionTools
from kgym_cli.agents.agent_choice import request_of
from kgym_crashfixer.runs import bugs
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.cycle import State
from kgym_crashfixer.search.search import Search
from kgym_crashfixer.search.tools import tools_of
from kgym_crashfixer.search.work import Question
from tests.refused import refused
from tests.tables import json_rows

HERE = Path(__file__).parent
MAILS = (HERE / "discussed.mbox").read_text()
FIX = """\
--- a/kernel/f.c
+++ b/kernel/f.c
@@ -1,2 +1,4 @@
 int f(int mode) {
+\tif (mode >= ARRAY_SIZE(modes))
+\t\treturn -1;
 \treturn modes[mode];
"""
HEAD = """\
From mboxrd@z Thu Jan  1 00:00:00 1970
From: A Developer <a@dev.example>
Date: Sun, 04 Sep 2022 12:00:00 +0000
Subject: Re: [PATCH v2] f: look away
"""
# Python would take minutes to read it, so such a mail is not read.
LARGE_HEADER = f"Content-Type: text/plain; a={'a' * 2000}\n\nhidden\n\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A bundle with mails; none of them has the fix."""
    folder = tmp_path / "discussed"
    folder.mkdir()
    (folder / "bug.toml").write_text((HERE / "discussed.toml").read_text())
    (folder / "repro.c").write_text("int main(void) { return 0; }\n")
    (folder / "config.fragment").write_text("CONFIG_NET=y\n")
    (folder / "fix.patch").write_text(FIX)
    (folder / "0.mbox").write_text(MAILS.replace("{fix}", ""))
    # The same mails again, and bytes of another encoding.
    (folder / "1.mbox").write_bytes(MAILS.replace("{fix}", "").encode() + b"\n\xe4\xff\n")
    return folder


def discussion(bug: Bug, mail: int | None = None) -> str:
    return asyncio.run(DiscussionTools(bug).discussion(mail))


def test_mails_are_listed_once_up_to_the_date_of_the_bug(folder: Path) -> None:
    assert discussion(bundle.load(str(folder))).splitlines() == [
        "4 mails",
        "<mails>",
        "1: 2022-09-02 10:11:12+00:00 syzbot <syzbot+1@syzkaller.example>:"
        " KASAN: use-after-free Read in f",
        "2: 2022-09-03 09:00:00+00:00 A Developer <a@dev.example>: f: look away (v2)",
        "3: 2022-09-03 12:00:00+02:00 M\ufffdaintainer <m@kernel.example>: Re: f: look away (v2)",
        "4: 2022-09-05 12:00:00+00:00 M Maintainer <m@kernel.example>: Re: something else",
        "</mails>",
    ]


def test_a_rejected_patch_is_read_with_the_reason(folder: Path) -> None:
    bug = bundle.load(str(folder))
    assert "+\tkasan_disable_current();" in discussion(bug, 2)
    reason = discussion(bug, 3)
    assert "No: this hides the crash.\n" in reason
    assert discussion(bug, 5) == "error: there are 4 mails"


@pytest.mark.attack
def test_a_mail_neither_ends_its_quotation_nor_reaches_the_terminal(folder: Path) -> None:
    long = MAILS.replace("{fix}", f"{HEAD}\n{'x' * 100_000}\n\n")
    (folder / "0.mbox").write_text(long)
    bug = bundle.load(str(folder))
    text = discussion(bug, 3)
    assert text.count("</mail>") == 1
    assert "\x1b" not in text
    assert len(discussion(bug, 4)) < 20_000


@pytest.mark.parametrize("mail", json_rows(__file__, "fixes_in_mails.jsonl"))
def test_a_mail_with_the_fix_ends_the_discussion(folder: Path, mail: str) -> None:
    (folder / "0.mbox").write_text(MAILS.replace("{fix}", f"{HEAD}{mail}\n"))
    text = discussion(bundle.load(str(folder)))
    assert text.startswith("3 mails\n")
    assert "something else" not in text


def test_a_fix_that_only_removes_lines_is_known_by_their_removal(folder: Path) -> None:
    removal = "--- a/f.c\n+++ b/f.c\n@@ -1,2 +1 @@\n int f;\n-kasan_disable_current();\n"
    (folder / "fix.patch").write_text(removal)
    assert discussion(bundle.load(str(folder))).startswith("4 mails\n")
    (folder / "0.mbox").write_text(MAILS.replace("{fix}", f"{HEAD}\n> {removal}\n"))
    assert discussion(bundle.load(str(folder))).startswith("3 mails\n")


FIXED = f"{HEAD}\n+\tif (mode >= ARRAY_SIZE(modes))\n\n"


def test_an_encoded_author_may_be_the_fix(folder: Path) -> None:
    name = "=?utf-8?q?if_=28mode_=3E=3D_ARRAY=5FSIZE=28modes=29=29?="
    mail = f"{HEAD.replace('A Developer', name)}\nHello\n\n"
    (folder / "0.mbox").write_text(MAILS.replace("{fix}", mail))
    assert discussion(bundle.load(str(folder))).startswith("3 mails\n")


def test_nothing_follows_a_fix_without_a_date_in_its_thread(folder: Path) -> None:
    undated = FIXED.replace("Date: Sun,", "Date: Someday,").replace("Sep 2022", "Sep 99999999999")
    early = FIXED.replace("04 Sep", "02 Sep").replace(FIXED.split("\n\n", 1)[1], "Indeed.\n\n")
    (folder / "0.mbox").write_text(MAILS.replace("{fix}", f"{undated}{early}"))
    text = discussion(bundle.load(str(folder)))
    # Not even what was sent before, in this thread and in others: a date may be wrong.
    assert text.startswith("1 mails\n")
    assert "syzbot" in text


@pytest.mark.parametrize("part", [LARGE_HEADER, "Content-Type: text/html\n\n<p>hidden\n\n"])
def test_an_opaque_mail_may_hold_the_fix_of_its_thread(folder: Path, part: str) -> None:
    opaque = f"{HEAD}{part}"
    (folder / "0.mbox").write_text(MAILS.replace("{fix}", opaque))
    text = discussion(bundle.load(str(folder)))
    assert "something else" in text
    assert text.startswith("4 mails; 1 " if part is LARGE_HEADER else "5 mails\n")
    # Its thread has the fix later, even after the bug's date.
    late = FIXED.replace("04 Sep", "04 Nov")
    (folder / "0.mbox").write_text(MAILS.replace("{fix}", opaque) + late)
    text = discussion(bundle.load(str(folder)))
    assert text.startswith("3 mails")
    assert "something else" not in text


@pytest.mark.parametrize(
    ("before", "after"), [("\ta = b;\n", "\ta = c;\n"), ("\treturn -EINVAL;\n", ""), ("\t}\n", "")]
)
def test_a_fix_of_short_lines_is_known_by_its_longest(
    folder: Path, before: str, after: str
) -> None:
    lines = f"-{before}" + (after and f"+{after}")
    size = "1 +1" if after else "1,2 +1"
    rest = "" if after else " int f;\n"
    (folder / "fix.patch").write_text(f"--- a/f.c\n+++ b/f.c\n@@ -{size} @@\n{rest}{lines}")
    (folder / "0.mbox").write_text(MAILS.replace("{fix}", f"{HEAD}\n{lines}\n"))
    assert "something else" not in discussion(bundle.load(str(folder)))


@pytest.mark.attack
def test_mails_are_few(folder: Path) -> None:
    (folder / "0.mbox").write_text(f"{HEAD}\nHello\n\n" * 1003)
    text = discussion(bundle.load(str(folder)))
    assert text.startswith("5 mails; 3 mails could not be read\n")
    (folder / "1.mbox").write_text("x" * (4 << 20))
    with refused("bad_bundle", match="4 MiB of mails"):
        bundle.load(str(folder))


def test_only_an_agent_that_reads_mails_is_sent_them(folder: Path) -> None:
    whole = request_of(str(folder), "tool", "made:up", True, (), None, here=False, discussion=True)
    assert discussion(bugs.load(whole)) == discussion(bundle.load(str(folder)))
    # Mails of any size and content are no part of a measured run.
    (folder / "1.mbox").write_bytes(b"\xff" * (9 << 20))
    request = request_of(str(folder), "tool", "made:up", True, (), None, here=False)
    names = {"bug.toml", "repro.c", "config.fragment", "fix.patch"}
    assert set(request.bundle or {}) == names
    assert bugs.load(request).mboxes == ()


def test_mails_stay_in_the_folder_and_have_a_date(folder: Path) -> None:
    toml = (HERE / "discussed.toml").read_text()
    for right, wrong in [("0.mbox", "../0.mbox"), ("00:00Z", "00:00"), ("before", "until")]:
        (folder / "bug.toml").write_text(toml.replace(right, wrong))
        with refused("bad_bundle"):
            bundle.load(str(folder))


def offered(strategy: Strategy, bug: Bug) -> list[str]:
    """Return the names of the tools of a search's first question."""
    crash = Crash(title=bug.file.title, report="BUG: f")
    search = Search(strategy, State(Code({"f.c": "a"}), crash, discussion=bool(bug.mboxes)))
    (asked,) = search.ask()
    assert isinstance(asked.work, Question)
    return [tool.name for tool in tools_of(asked.work)]


@pytest.mark.parametrize("strategy", [Tool(), Forest(trees=1, cycle=Cycle(looks=3, trace=False))])
def test_a_benchmark_has_no_such_tool(folder: Path, strategy: Strategy) -> None:
    # As a campaign makes its requests; `kgym fix` adds the discussion.
    request = request_of(str(folder), "tool", "made:up", True, (), None, here=True)
    assert "discussion" not in offered(strategy, bugs.load(request))
    personal = request_of(
        str(folder), "tool", "made:up", True, (), None, here=True, discussion=True
    )
    assert "discussion" in offered(strategy, bugs.load(personal))
    assert discussion(bugs.load(request)) == "0 mails\n<mails>\n\n</mails>"

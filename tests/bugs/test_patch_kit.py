"""Patch kits: tags from facts alone, recipients and messages that deceive no tool."""

import email
import email.policy
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kgym.api.agent.nodes import CauseCommit
from kgym.api.steps.check import Blamed, Upstream
from kgym.bugs import bundle, patch_kit
from kgym.bugs.bug_file import ChangeTable
from kgym.bugs.patch_kit import PatchKit
from kgym.errors import UserError
from kgym.source import patch_mails
from tests.refused import refused
from tests.tables import json_rows

DIFF = "--- a/kernel/watch_queue.c\n+++ b/kernel/watch_queue.c\n@@ -1 +1 @@\n-int a;\n+int b;\n"
FILE = bundle.load("watch-queue-filter").file
WHO = [
    *("Ann Ä <ann@example.org> (maintainer:X)", "list@example.org (open list)"),
    "Eve <\xeave@example.org> (maintainer:X)",
]
BODY = (
    "The `limit` is too\u202e large.\n\nDon't.\n---\nFixes: 1 (2)\nSubject: no\n\n"
    "Fixes :1\n\n- one \ud800\n- two"
)


def kit(case: dict[str, Any], **more: Any) -> PatchKit:
    blame = [
        Blamed(commit=40 * name, title=f"commit {name}", removed=removed, kept=kept, tag=tag)
        for name, removed, kept, tag in case.get("blame", [])
    ]
    facts = {"release": case.get("release", ""), "prefix": "watch_queue", "recipients": WHO}
    regress = ChangeTable(patch="regress.patch") if case.get("regress") else None
    file = FILE.model_copy(update={"regress": regress, "references": case.get("references", [])})
    given: dict[str, Any] = {
        "bug": file,
        "crash": "KASAN: bad",
        "diff": DIFF + " \n" * case.get("lines", 0),
        "author": "Bob <bob@example.org>",
        "date": datetime(2026, 1, 2, tzinfo=UTC),
        "trailers": case.get("trailers", ()),
        "upstream": Upstream.model_validate({**facts, "blame": blame}),
        "cause": CauseCommit(commit=40 * case["cause"]) if "cause" in case else None,
    }
    return PatchKit(**{**given, **more})


@pytest.mark.parametrize("case", json_rows(__file__, "kits.jsonl"), ids=lambda case: case["is"])
def test_tags_follow_from_facts(case: dict[str, Any]) -> None:
    assert kit(case).tags == case["tags"]


@pytest.mark.parametrize(
    ("message", "crash", "subject"),
    [
        ("[PATCH v2] net: `limit`: fix it.", "KASAN: bad", "watch_queue: fix it"),
        ("", "BUG: unable to handle kernel NULL pointer dereference in f", None),
        ("fix " + "x " * 90, "KASAN: bad", "watch_queue: fix" + " x" * 28 + "..."),
        ("net: mine", "", "net: mine"),
        ("mine", "", "watch_queue: mine"),
    ],
)
def test_subjects_begin_with_the_subsystem(message: str, crash: str, subject: str | None) -> None:
    made = kit({}, message=f"{message}\n\nbody" if message else "", crash=crash).subject
    assert made == (subject or "watch_queue: fix NULL pointer dereference in f")
    assert len(made) <= patch_kit.SUBJECT


@pytest.mark.attack
def test_mail_tools_read_a_kit_and_no_line_of_a_message_as_their_own(tmp_path: Path) -> None:
    made = kit({"release": "6.1.0"}, message=f"it\n\n{BODY}", notes="run 7\nCc: eve@x")
    mail = email.message_from_string(made.mail, policy=email.policy.default)
    assert str(mail["subject"]) == "[PATCH] watch_queue: it"
    assert (str(mail["to"]), str(mail["cc"])) == ("Ann Ä <ann@example.org>", "list@example.org")
    assert mail["message-id"]
    (tmp_path / "mail").write_text(made.mail)
    parts = [
        subprocess.run(
            ["git", "mailinfo", tmp_path / "message", tmp_path / "patch"],
            input=made.mail.encode(),
            cwd=tmp_path,
            check=True,
            capture_output=True,
        ).stdout.decode(),
        (tmp_path / "message").read_text(),
        (tmp_path / "patch").read_text(),
    ]
    assert "Author: Bob\nEmail: bob@example.org\nSubject: watch_queue: it" in parts[0]
    assert "The limit is too large." in parts[1]
    assert "\n> Fixes :1\n" in parts[1]
    assert parts[1].rstrip().endswith("- two\n\nCc: stable@vger.kernel.org # 6.1.x")
    assert DIFF in parts[2]
    note = made.note
    assert all(who in note for who in WHO)
    assert set(patch_kit.files(made.mail, note)) == {"0001-watch_queue-it.patch", "cover-note.md"}


def test_a_mail_has_no_line_of_code_that_was_not_tried() -> None:
    named = DIFF.replace("@@\n", "@@ int f(void)\n")
    for diff, taken in (
        (named, True),
        (named.replace("int b", "int evil"), False),
        ("no diff", False),
    ):
        facts = Upstream.model_validate({"prefix": "x", "diff": diff})
        assert (diff in kit({}, upstream=facts).mail, DIFF in kit({}, upstream=facts).mail) == (
            taken,
            not taken,
        )


def test_an_authors_own_message_stays_as_it_is() -> None:
    text = (
        "From: Ann <ann@example.org>\nSubject: [PATCH] x: fix it\n\nIt was\n  wrong.\n\n"
        f'Fixes: 222222222222 ("x")\nSigned-off-by: Ann <ann@example.org>\n---\n{DIFF}'
    )
    message, tags, author = patch_kit.authored(patch_mails.read(text, "a.patch"))
    assert (message, author) == ("x: fix it\n\nIt was\n  wrong.", "Ann <ann@example.org>")
    assert [tag.partition(":")[0] for tag in tags] == ["Fixes", "Signed-off-by"]
    mail = kit({}, message=message, trailers=tags, crash="", author=author).mail
    assert '\n\nIt was\n  wrong.\n\nFixes: 222222222222 ("x")\nSigned-off-by: Ann' in mail
    assert patch_kit.authored(patch_mails.read(DIFF, "a.diff")) == ("", [], "")
    cut = patch_kit.authored(patch_mails.read(text.replace("wrong.", "wrong.\n--- \nx"), "a.patch"))
    assert cut[0] == message
    assert "\n>From a Mon" in kit({}, message=f"{message}\nFrom a Mon 00:00", crash="").mail
    with refused("bad_author"):
        patch_kit.author_of("Jörg <jörg@example.org>")
    with refused("several_patches", kind=UserError):
        mails = f"From a Mon Sep 17 00:00:00 2001\n{text}\nFrom b Mon Sep 17 00:00:00 2001\n{text}"
        patch_kit.authored(patch_mails.read(mails.replace("fix it", "other", 1), "a.mbox"))

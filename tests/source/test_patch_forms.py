"""Patches as people and programs really hand them in: each form applies, or is refused by name."""

import base64
import quopri
import re
import time
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api.steps import Patch
from kgym.errors import UserError
from kgym.source import patch_mails
from kgym.source.patching import Applied, apply, as_diff, files, identity, misplaced, reverse
from tests.conftest import ROOT

SAMPLES = ROOT.parent / "shared" / "data" / "odd_inputs" / "patches"
FULL = "".join(f"\tint line{n} = {n}; /* caf\u00e9 */\n" for n in range(9)) + "\n\treturn 0;\n}\n"
DIFF = """\
diff --git a/kernel/a.c b/kernel/a.c
index 1111111..2222222 100644
--- a/kernel/a.c
+++ b/kernel/a.c
@@ -3,3 +3,3 @@ int f(void)
 \tint line2 = 2; /* caf\u00e9 */
-\tint line3 = 3; /* caf\u00e9 */
+\tint line3 = 4; /* caf\u00e9 */
 \tint line4 = 4; /* caf\u00e9 */
@@ -9,4 +9,4 @@ int f(void)
 \tint line8 = 8; /* caf\u00e9 */
\x20
-\treturn 0;
+\treturn 1;
 }
"""
CHANGED = FULL.replace("line3 = 3", "line3 = 4").replace("return 0", "return 1")
TREE = {"kernel/a.c": FULL, "kernel/b.c": "int b;\n", "lib/b.c": "int lib;\n", "mm/b.c": "x\n"}
HEADERS, HUNKS = DIFF[: DIFF.index("@@")], DIFF[DIFF.index("@@") :]
FIRST, SECOND = HUNKS.split("@@ -9")[0], "@@ -9" + HUNKS.split("@@ -9")[1]


def applied(diff: str, tree: dict[str, str] = TREE, **more: object) -> Applied:
    patch = Patch.model_validate({"diff": diff, **more})
    return apply(patch, {path: tree[path].encode() for path in tree})


def result(diff: str, tree: dict[str, str] = TREE, **more: object) -> dict[str, str | None]:
    changes = applied(diff, tree, **more).changes
    return {each.path: each.content.decode() if each.content else None for each in changes}


def refusal(diff: str, tree: dict[str, str] = TREE, **more: object) -> UserError:
    with pytest.raises(UserError) as caught:
        applied(diff, tree, **more)
    return caught.value


def by_line(change: Callable[[str], str]) -> str:
    return "".join(f"{change(line)}\n" for line in DIFF.splitlines())


def coloured(line: str) -> str:
    if line.startswith("+") and not line.startswith("+++"):
        return f"\x1b[32m+\x1b[m\t\x1b[32m{line[2:]}\x1b[m"
    return f"\x1b[1m{line}\x1b[m"


FORMS = {
    "as Git writes it": DIFF,
    "colours": by_line(coloured),
    "colours as a pager shows them": by_line(lambda line: f"ESC[1m{line}ESC[m"),
    "indented": "I did this:\n\n" + by_line(lambda line: f"    {line}"),
    "CRLF": DIFF.replace("\n", "\r\n"),
    "blanks cut off": re.sub("(?m)^ $", "", DIFF),
    "tabs at the start of context": re.sub("(?m)^ \t", "\t", DIFF),
    "prose around": f"So that's my patch\n{DIFF}\nWatch out for the empty lines!\n- and more\n",
    "a signature": f"{DIFF}-- \n2.39.2\n\n",
    "a signature without its blank": f"{DIFF}--\nme\n",
    "a quoted reply": f"{DIFF}\nOn Monday, somebody wrote:\n> diff --git a/x b/x\n> +\tint x;\n",
    "scissors": f"Hi,\n--- a/kernel/a.c\nno diff\n-- >8 --\n{DIFF}-- 8< --\nbye\n",
    "a fence": f"```diff\n{DIFF}```\nThat is all.\n",
    "counts too low": DIFF.replace("3,3 +3,3", "3,2 +3,2").replace("9,4 +9,4", "9,3 +9,3"),
    "counts too high": DIFF.replace("3,3 +3,3", "3,4 +3,5").replace("9,4 +9,4", "9,6 +9,5"),
    "counts too high before prose": f"{DIFF.replace('9,4 +9,4', '9,5 +9,5')}\n\nbye\n",
    "wrong lines": DIFF.replace("-3,3 +3,3", "-1,3 +1,3").replace("-9,4 +9,4", "-1,4 +1,4"),
    "bare @@": re.sub("(?m)^@@ .*$", "@@", DIFF),
    "@@ with dots": re.sub("(?m)^@@ .*$", "@@ ... @@", DIFF),
    "@@ with a function": re.sub("(?m)^@@ .* @@", "@@", DIFF),
    "no @@": HEADERS + FIRST.partition("\n")[2] + HEADERS + SECOND,
    "no context": f"{HEADERS}@@ -4 +4 @@\n{FIRST.splitlines()[2]}\n{FIRST.splitlines()[3]}\n"
    "@@ -11 +11 @@\n-\treturn 0;\n+\treturn 1;\n",
    "two diffs of one file": HEADERS + FIRST + HEADERS + SECOND,
    "Subversion": f"Index: kernel/a.c\n{'=' * 67}\n--- kernel/a.c\t(revision 1)\n"
    f"+++ kernel/a.c\t(working copy)\n{HUNKS}\nProperty changes on: kernel/a.c\n{'_' * 67}\n"
    "Added: svn:executable\n## -0,0 +1 ##\n+*\n",
    "Subversion, pasted": "--- kernel/a.c    (revision 1)\n"
    f"+++ kernel/a.c    (working copy)\n{HUNKS}",
    "quilt": f"Fix it.\n\nIndex: linux/kernel/a.c\n{'=' * 67}\n--- linux.orig/kernel/a.c\n"
    f"+++ linux/kernel/a.c\n{HUNKS}",
    "time stamps, pasted": "--- kernel/a.c.orig 2024-01-02 03:04:05.000000000 +0100\n"
    f"+++ kernel/a.c 2024-01-02 03:04:06.000000000 +0100\n{HUNKS}",
    "two levels more": DIFF.replace("a/kernel", "old/linux/kernel").replace("b/k", "new/linux/k"),
    "no folder": re.sub("[ab]/kernel/", "", DIFF),
    "no folder behind a prefix": re.sub("([ab]/)kernel/", r"\1", DIFF),
    "a level less": DIFF.replace("a/kernel/a.c b", "kernel/a.c b"),
    "a folder of the user's": re.sub("([ab])/kernel", r"\1/src/linux-6.1/kernel", DIFF),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_right_patch_applies(form: str) -> None:
    assert result(FORMS[form]) == {"kernel/a.c": CHANGED}


def test_the_same_change_has_the_same_identity() -> None:
    forms = ("as Git writes it", "colours", "prose around", "counts too low", "CRLF")
    texts = {identity(Patch(diff=re.sub("(?m)^index.*\n", "", FORMS[form]))) for form in forms}
    assert len(texts) == 1
    assert result(as_diff(Patch(diff=FORMS["counts too high"]))) == {"kernel/a.c": CHANGED}


def test_what_was_not_as_it_should_be_is_noted() -> None:
    def notes(form: str) -> str:
        return "\n".join(applied(FORMS[form]).notes)

    assert notes("as Git writes it") == ""
    assert "miscounts its lines" in notes("counts too low")
    assert "applied to the only place" in notes("bare @@")
    assert "old/linux/kernel/a.c means kernel/a.c" in notes("two levels more") or (
        "linux/kernel/a.c means kernel/a.c" in notes("two levels more")
    )


REFUSED = {
    "combined": ("diff --cc kernel/a.c\nindex 1,2..3\n@@@ -1,2 -1,2 +1,2 @@@\n  a\n--b\n++c\n",
                 "`git show -m --first-parent COMMIT`"),
    "words": (HEADERS + "@@ -3 +3 @@\n\tint line3 = [-3;-]{+4;+} /* caf\u00e9 */\n", "word diff"),
    "context": ("*** a/x\n--- b/x\n***************\n*** 1,2 ****\n! a\n--- 1,2 ----\n! b\n",
                "context diff"),
    "normal": ("3c3\n< a\n---\n> b\n", "without context"),
    "quoted": ("Looks good.\n" + by_line(lambda line: f"> {line}"), "quotation"),
    "summary": (" kernel/a.c | 2 +-\n 1 file changed\n", "only a summary"),
    "HTML": ("<pre>diff --git a/x b/x<br>@@ -1 +1 @@<br>-a<br>+b</pre>\n", "begin its lines"),
    "one line": ('{"diff": "--- a/x\\n+++ b/x\\n@@ -1 +1 @@"}\n', "begin its lines"),
    "no file": (FIRST, "put `--- a/PATH`"),
    "cut off": (HEADERS, "cut off"),
    "cut off in a hunk": (HEADERS + FIRST[: FIRST.index("-\t")], "no line of this hunk begins"),
    "one side": (f"Only in linux/kernel: new.c\n{DIFF}", "`diff -ruN`"),
    "a wrapped line": (DIFF.replace("line3 = 4; ", "line3 = 4;\n"), "make the patch anew"),
    "other lines": ("--- a/kernel/b.c\n+++ b/kernel/b.c\n@@\n-x\n+y\n", "none of its lines"),
    "no place": ("--- a/kernel/a.c\n+++ b/kernel/a.c\n@@\n+\tint y;\n", "before and after"),
}  # fmt: skip


@pytest.mark.parametrize("form", REFUSED)
def test_what_cannot_be_read_is_refused_by_name_with_a_remedy(form: str) -> None:
    text, words = REFUSED[form]
    error = refusal(text)
    assert words in error.message
    assert "holds no hunk" not in error.message
    assert re.search(r"make|give|use|put|begin|git show|set|diff -u", error.message)


def test_lines_that_may_be_prose_or_code_are_not_dropped() -> None:
    surplus = DIFF + "\n+\tint lost;\n"
    assert refusal(surplus).reason == "patch_does_not_apply"


def test_a_bare_hunk_that_fits_twice_is_refused() -> None:
    tree = {"kernel/a.c": "x\ny\nx\ny\n"}
    error = refusal("--- a/kernel/a.c\n+++ b/kernel/a.c\n@@\n-x\n+z\n y\n", tree)
    assert "several places" in error.message


# --- files elsewhere ----------------------------------------------------------------------


def test_of_files_of_a_name_the_one_with_the_lines_is_meant() -> None:
    change = "--- a/b.c\n+++ b/b.c\n@@ -1 +1 @@\n-int lib;\n+int c;\n"
    assert result(change) == {"lib/b.c": "int c;\n"}


def test_a_path_that_is_meant_is_named() -> None:
    other = "--- a/{0}\n+++ b/{0}\n@@ -1 +1 @@\n-nothing\n+int c;\n"
    assert "kernel/b.c, lib/b.c, mm/b.c may be meant" in refusal(other.format("b.c")).message
    error = refusal(other.format("x/kernel/a.c"))
    assert "kernel/a.c may be meant" in error.message
    assert "hunk 1 of kernel/a.c" in error.message
    twice = {"kernel/b.c": "int b;\n", "lib/b.c": "int b;\n"}
    same = "--- a/b.c\n+++ b/b.c\n@@ -1 +1 @@\n-int b;\n+int c;\n"
    assert "kernel/b.c, lib/b.c may be meant" in refusal(same, twice).message
    assert "there is no such name" in refusal(other.format("no.c")).message


def test_files_that_patches_make_themselves_are_not_looked_for() -> None:
    new = "--- /dev/null\n+++ b/kernel/new.c\n@@ -0,0 +1 @@\n+int n;\n"
    changed = "--- a/kernel/new.c\n+++ b/kernel/new.c\n@@ -1 +1 @@\n-int n;\n+int m;\n"
    whole = [Patch(diff=mbox(("[PATCH 1/2] a", new), ("[PATCH 2/2] b", changed)))]
    for series in (whole, [Patch(diff=new), Patch(diff=changed)]):
        assert misplaced(series, TREE) == set()
    assert misplaced([Patch(diff=DIFF), Patch(diff=changed)], TREE) == {"new.c"}
    assert misplaced([Patch(diff=new + FORMS["no folder"])], {}) == {"new.c", "a.c"}


def test_new_files_lie_where_the_others_do() -> None:
    new = "--- /dev/null\n+++ new/linux/kernel/new.c\n@@ -0,0 +1 @@\n+int n;\n"
    assert result(new + FORMS["two levels more"]) == {
        "kernel/a.c": CHANGED,
        "kernel/new.c": "int n;\n",
    }


@pytest.mark.attack
@pytest.mark.parametrize(
    "sent", ["Mon, 01 Jan 99999999999 00:00:00 +0000", f"1 Jan 20 0:0 +{'9' * 99}"]
)
def test_an_unreadable_date_is_no_date(sent: str) -> None:
    mail = f"From: A <a@b.example>\nDate: {sent}\nSubject: [PATCH] x\n\n{DIFF}"
    assert result(mail) == {"kernel/a.c": CHANGED}
    assert patch_mails.date(sent) is None


# --- copies, renames, binaries --------------------------------------------------------------


def test_a_copy_leaves_its_source() -> None:
    copy = DIFF.replace("b/kernel/a.c", "b/kernel/copy.c").replace(
        "index", "similarity index 90%\ncopy from kernel/a.c\ncopy to kernel/copy.c\nindex"
    )
    assert result(copy) == {"kernel/copy.c": CHANGED}
    # Git takes copies from the files before the patch.
    assert result(DIFF + copy) == {"kernel/a.c": CHANGED, "kernel/copy.c": CHANGED}
    assert files(Patch(diff=copy)) == ["kernel/a.c", "kernel/copy.c"]
    with pytest.raises(UserError, match="--no-renames"):
        reverse(Patch(diff=copy))


def test_a_rename_with_edits() -> None:
    moved = DIFF.replace("b/kernel/a.c", "b/lib/a.c").replace(
        "index", "similarity index 90%\nrename from kernel/a.c\nrename to lib/a.c\nindex"
    )
    assert result(moved) == {"kernel/a.c": None, "lib/a.c": CHANGED}
    back = reverse(Patch(diff=moved)).diff or ""
    assert result(back, {"lib/a.c": CHANGED}) == {"lib/a.c": None, "kernel/a.c": FULL}


@pytest.mark.parametrize("kind", ["rename", "copy"])
def test_a_file_that_is_there_is_replaced_only_if_the_patch_removes_it(kind: str) -> None:
    text = "diff --git a/{0} b/{1}\nsimilarity index 100%\n{2} from {0}\n{2} to {1}\n"
    onto = text.format("kernel/a.c", "lib/b.c", kind)
    error = refusal(onto)
    assert (error.reason, error.details["file"]) == ("patch_does_not_apply", "lib/b.c")
    assert "lib/b.c already exists: change it, or choose another name" in error.message
    away = text.format("lib/b.c", "lib/c.c", "rename")
    gone = "--- a/lib/b.c\n+++ /dev/null\n@@ -1 +0,0 @@\n-int lib;\n"
    for before in (away, gone):
        assert result(before + onto)["lib/b.c"] == FULL


@pytest.mark.parametrize(
    "binary",
    [
        "diff --git a/logo.png b/logo.png\nindex 1..2 100644\n"
        "GIT binary patch\nliteral 3\nKcmZQ\n\n",
        "diff --git a/logo.png b/logo.png\nindex 1..2\n"
        "Binary files a/logo.png and b/logo.png differ\n",
        "Binary files linux.orig/logo.png and linux/logo.png differ\n",
    ],
)
def test_binary_files_are_left_out_on_request_only(binary: str) -> None:
    for text in (binary + DIFF, DIFF + binary):
        error = refusal(text)
        assert (error.reason, "logo.png" in error.message) == ("binary_patch", True)
        done = applied(text, drop_binaries=True)
        assert [change.path for change in done.changes] == ["kernel/a.c"]
        assert any("logo.png is binary: left out" in note for note in done.notes)
    assert "only binary files" in refusal(binary, drop_binaries=True).message


def test_modes_and_empty_files_are_changes() -> None:
    mode = "diff --git a/kernel/a.c b/kernel/a.c\nold mode 100644\nnew mode 100755\n"
    (change,) = applied(mode).changes
    assert (change.path, change.executable) == ("kernel/a.c", True)
    new = "diff --git a/new b/new\nnew file mode 100644\nindex 0000000..e69de29\n"
    (change,) = applied(new).changes
    assert change.content == b""
    gone = reverse(Patch(diff=new)).diff or ""
    assert result(gone, {"new": ""}) == {"new": None}
    assert "has other lines" in refusal(gone, {"new": "x\n"}).message


# --- mails --------------------------------------------------------------------------------


def mail(subject: str = "[PATCH] a: fix it", body: str = DIFF, **headers: str) -> EmailMessage:
    message = EmailMessage()
    message["From"] = "Dev Eloper <dev@example.org>"
    message["Subject"] = subject
    for name, value in headers.items():
        message[name.replace("_", "-")] = value
    message.set_content(f"Why.\n\nSigned-off-by: D\n---\n a | 2 +-\n\n{body}-- \n2.39\n")
    return message


def attached(disposition: str, kind: str = "x-patch") -> str:
    message = EmailMessage()
    message["Subject"] = "[PATCH] a: fix it"
    message.set_content("See the attachment.\n")
    message.add_attachment(b"\x89PNG\x00", "image", "png", filename="a.png")
    data = DIFF.encode()
    message.add_attachment(data, "text", kind, filename="a.patch", disposition=disposition)
    return message.as_string()


def encoded(encoding: str, charset: str, declared: str | None = None) -> str:
    data = f"Why.\n\n{DIFF}-- \n2.39\n".encode(charset)
    body = base64.encodebytes(data) if encoding == "base64" else quopri.encodestring(data)
    return (
        f"Subject: =?utf-8?q?=5BPATCH=5D_caf=C3=A9?=\nMIME-Version: 1.0\n"
        f"Content-Type: text/plain; charset={declared or charset}\n"
        f"Content-Transfer-Encoding: {encoding}\n\n{body.decode('ascii')}"
    )


def flowed(text: str) -> str:
    """Wrap as RFC 3676 does: another blank before blanks, and soft line breaks."""
    lines = []
    for line in text.splitlines():
        stuffed = f" {line}" if line.startswith((" ", ">", "From ")) else line
        at = stuffed.rfind(" ", 20, 30)
        lines += [f"{stuffed[: at + 1]}", stuffed[at + 1 :]] if at > 0 else [stuffed.rstrip()]
    return "\n".join(lines) + "\n"


ALTERNATIVE = EmailMessage()
ALTERNATIVE["Subject"] = "[PATCH] a: fix it"
ALTERNATIVE.set_content(DIFF)
ALTERNATIVE.add_alternative(f"<pre>{DIFF}</pre>", subtype="html")

MAILS = {
    "plain": f"From: a\nSubject: [PATCH] x\n\nWhy.\n---\n{DIFF}-- \n2.39\n",
    "8bit": mail(Content_Language="en").as_string(),
    "attached": attached("attachment"),
    "inline": attached("inline"),
    "octets": attached("attachment").replace("text/x-patch", "application/octet-stream"),
    "alternative": ALTERNATIVE.as_string(),
    "quoted-printable": encoded("quoted-printable", "utf-8"),
    "base64": encoded("base64", "utf-8"),
    "Latin-1": encoded("quoted-printable", "iso-8859-1"),
    "no such charset": encoded("base64", "utf-8", "x-none"),
    "a charset that is none": encoded("base64", "iso-8859-1", "punycode"),
    "the wrong charset": encoded("base64", "iso-8859-1", "utf-8"),
    "flowed": "Subject: x\nContent-Type: text/plain; format=flowed\n\n" + flowed(DIFF),
    "called flowed": "Subject: x\nContent-Type: text/plain; format=flowed\n\n" + DIFF,
    "from an mbox": f"From 1234 Mon Sep 17 00:00:00 2001\nFrom: a\nSubject: x\n\n{DIFF}\n",
    "cut with scissors": f"Subject: Re: x\n\n{DIFF.replace('4;', '5;')}\n-- >8 --\nWhy.\n\n{DIFF}",
}  # fmt: skip


@pytest.mark.parametrize("form", MAILS)
def test_every_form_of_a_mail_applies(form: str) -> None:
    assert result(MAILS[form]) == {"kernel/a.c": CHANGED}


def mbox(*mails: tuple[str, str]) -> str:
    return "".join(
        f"From mboxrd@z Thu Jan  1 00:00:00 1970\nSubject: {subject}\n\nText.\n\n{body}\n"
        for subject, body in mails
    )


FIRST_OF_TWO, SECOND_OF_TWO = (
    ("[PATCH 1/2] one", HEADERS + FIRST),
    ("[PATCH 2/2] two", HEADERS + SECOND),
)


def test_a_series_is_applied_in_its_order_without_cover_letter_and_replies() -> None:
    third = DIFF.replace("line3 = 3", "line3 = 4").replace("line3 = 4; ", "line3 = 5; ", 2)
    third = HEADERS + FIRST.replace("= 4; ", "= 5; ", 1).replace("= 3; ", "= 4; ", 1)
    text = mbox(
        ("[PATCH 0/3] cover", " a.c | 2 +-\n"),
        ("[PATCH 3/3] three", third),
        SECOND_OF_TWO,
        ("Re: [PATCH 2/3] two", "> +\tx\nReviewed-by: Re Viewer <re@example.org>\n" + DIFF),
        FIRST_OF_TWO,
    )
    done = applied(text)
    assert done.changes[0].content == CHANGED.replace("line3 = 4", "line3 = 5").encode()
    assert "Reviewed-by: Re Viewer <re@example.org>" in "\n".join(done.notes)


def test_trailers_are_not_counted_as_moved_hunks() -> None:
    trailers = "".join(f"Acked-by: {n} <{n}@example.org>\n" for n in range(1500))
    done = applied(mbox(("[PATCH] one", DIFF), ("Re: [PATCH] one", trailers)))
    assert len(done.notes) == 1500


def test_the_patch_of_a_series_that_fails_is_named() -> None:
    error = refusal(
        mbox(FIRST_OF_TWO, ("[PATCH 2/2] two", HEADERS + SECOND.replace("return 0", "no")))
    )
    assert "patch 2 of 2 (two): hunk 1 of kernel/a.c" in error.message
    assert (error.details["patch"], error.details["patches"]) == (2, 2)


def test_the_newest_version_counts() -> None:
    old = ("[PATCH v1 1/1] one", HEADERS + FIRST.replace("= 4; ", "= 9; ", 1))
    new = ("[PATCH v2 1/1] one again", DIFF)
    done = applied(mbox(old, new))
    assert done.changes[0].content == CHANGED.encode()
    assert any("left out: one, v1" in note for note in done.notes)
    # Patches that have nothing to do with each other all count.
    both = mbox(("[PATCH v3] one", HEADERS + FIRST), ("[PATCH] two", HEADERS + SECOND))
    assert result(both) == {"kernel/a.c": CHANGED}


def test_a_patch_that_the_series_lacks_is_noted() -> None:
    assert any(
        "patch 1 of the series is not here" in note for note in applied(mbox(SECOND_OF_TWO)).notes
    )


def test_a_reply_with_a_patch_of_its_own_counts_where_there_is_no_other() -> None:
    assert result(mbox(("Re: [PATCH] x", f"> how?\nLike this:\n{DIFF}"))) == {"kernel/a.c": CHANGED}


NESTED = "".join(f'Content-Type: multipart/mixed; boundary="b{n}"\n\n--b{n}\n' for n in range(1000))
BOMBS = {
    "nested": f"Subject: x\n{NESTED}",
    "parts": 'Subject: x\nContent-Type: multipart/mixed; boundary="b"\n\n' + "--b\n\nx\n" * 60_000,
    "parameters": "Subject: x\nContent-Type: text/plain" + ";a" * 1_000_000 + "\n\nx\n",
    "mails": "From a Thu Jan  1 00:00:00 1970\nSubject: x\n\n" * 40_000,
    "headers": "Subject: x\n" + "X-A: b\n" * 190_000 + "\n",
    "a subject": "Subject: " + "=?utf-8?q?" * 100_000 + "\nContent-Type: a\n\n",
    "froms": "From " + "a" * 4_000_000,
    "blanks": "--- a" + " " * 2_000_000 + "\n+++ b" + " " * 2_000_000 + "\n@@ -1 +1 @@\n-a\n+b\n",
    "indents": " " * 4_000_000 + "--- a",
    "colours": "\x1b[1mdiff --git " + "\x1b[1" * 1_000_000,
    "hunks": HEADERS + "@@\n+a\n" * 60_000,
    "marks": HEADERS + "@@ -1,9 +1,9 @@\n" + "[-" * 2_000_000,
    "brackets": "Subject: [PATCH " + "[" * 1_000_000 + "\nContent-Type: a\n\n",
}


@pytest.mark.thorough
@pytest.mark.attack
@pytest.mark.parametrize("bomb", BOMBS)
def test_a_hostile_mail_or_diff_takes_no_time(bomb: str) -> None:
    begun = time.process_time()
    error = refusal(BOMBS[bomb][: 4 << 20])
    assert error.reason in {
        *("patch_too_large", "empty_patch", "malformed_patch", "unsafe_patch"),
        "patch_does_not_apply",
    }
    assert time.process_time() - begun < 8


PIECES = st.sampled_from(
    [
        *(
            "Subject: [PATCH v2 1/2] x\n",
            "Content-Type: multipart/mixed; boundary=b\n",
            "\n",
            "--b\n",
        ),
        *("Content-Type: text/plain; charset=\xfe\n", "Content-Transfer-Encoding: base64\n"),
        *(
            "Content-Disposition: attachment; filename*=x''%ff\n",
            "=?x?q?y?=",
            "--b--\n",
            "-- >8 --\n",
        ),
        *("From a Thu Jan  1 00:00:00 1970\n", *DIFF.splitlines(keepends=True)),
        *(
            "format=flowed; delsp=yes",
            "\\ No newline\n",
            "@@\n",
            "GIT binary patch\n",
            "Index: x\n",
        ),
    ]
)


@pytest.mark.thorough
@given(st.lists(PIECES | st.text(max_size=4), max_size=40).map("".join), st.booleans())
def test_any_text_is_applied_or_refused(text: str, drop: bool) -> None:
    patch = Patch(diff=text, drop_binaries=drop)
    for read in (files, identity, as_diff, reverse, lambda patch: applied(text)):
        try:
            read(patch)
        except UserError as error:
            assert error.message  # noqa: PT017


# --- the samples ----------------------------------------------------------------------------


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="not here: shared/data/odd_inputs")
@pytest.mark.parametrize("sample", sorted(SAMPLES.iterdir()) if SAMPLES.is_dir() else [], ids=str)
def test_samples_are_read(sample: Path) -> None:
    """Whether they apply needs a kernel's source: tests/kernel."""
    from kgym_cli.inputs.patch_files import patch_file  # noqa: PLC0415

    if sample.name == "combined.diff":
        with pytest.raises(UserError, match="combined diff"):
            patch_file(sample)
        return
    paths = files(patch_file(sample))
    assert {Path(path).name for path in paths} <= {"watch_queue.c", "watch_queue_fixed.c", "rw.c"}

"""What others said steers no terminal: no control characters, and no markup, in what is printed."""

import dataclasses
import io
import json
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec, Edit, Patch
from kgym_cli.output import Terminal, plain
from tests.cli.conftest import Kgym

pytestmark = pytest.mark.thorough

CONTROLS = [
    chr(number) for number in (*range(0x20), *range(0x7F, 0xA0)) if chr(number) not in "\t\n"
]
FOREIGN = "".join(f"{char}x" for char in CONTROLS) + "\x1b[2J\x1b]0;title\x07\x9b31m[bold]b[/] [/x]"


def steered(text: str) -> bool:
    return bool(set(CONTROLS) & set(text))


def terminal(**options: bool) -> tuple[Terminal, io.StringIO]:
    file = io.StringIO()
    return Terminal(file=file, width=4000, highlight=False, soft_wrap=True, **options), file


def test_newlines_and_tabs_stay() -> None:
    assert plain("a\r\n\tb\n") == "a\n\tb\n"
    assert not steered(plain(FOREIGN))


@pytest.mark.parametrize("char", CONTROLS)
def test_each_control_character_is_shown_not_obeyed(char: str) -> None:
    console, file = terminal()
    console.print(f"a{char}b")
    assert file.getvalue() == "a\ufffdb\n" or (
        char in "\r\x07\x08\x0b\x0c" and "ab" in file.getvalue()
    )


def test_our_own_styles_are_still_escape_sequences() -> None:
    console, file = terminal(force_terminal=True)
    console.print("[bold]ours[/]", end="", markup=True)
    assert file.getvalue() == "\x1b[1mours\x1b[0m"


def test_foreign_text_beside_our_styles_adds_no_sequence() -> None:
    console, file = terminal(force_terminal=True)
    console.print(FOREIGN, style="red", end="")
    shown = file.getvalue()
    assert shown.startswith("\x1b[31m")
    assert not steered(shown.removeprefix("\x1b[31m").removesuffix("\x1b[0m"))


def test_a_bundle_and_a_console_log_that_hold_everything(kgym: Kgym, tmp_path: Path) -> None:
    folder = tmp_path / "bug"
    folder.mkdir()
    (folder / "repro.c").write_text("int main(void) { return 0; }\n")
    (folder / "fix.patch").write_text("--- a/f.c\n+++ b/f.c\n@@ -1 +1 @@\n-good();\n+bad();\n")
    text = json.dumps(FOREIGN)
    (folder / "bug.toml").write_text(
        f"title = {text}\nsummary = {text}\nfiles = [{text}]\nreferences = [{text}]\n"
        '[kernel]\ntarball = "linux.tar"\nsha256 = "' + "0" * 64 + '"\nbase = "allnoconfig"\n'
        '[reproducer]\nfile = "repro.c"\ntime = 7\n[regress]\npatch = "fix.patch"\n'
    )
    log = tmp_path / "console.log"
    log.write_text(f"[    1.0] BUG: KASAN: use-after-free in f+0x1/0x2\n{FOREIGN}\n")
    for words in (["bug", "show", folder], ["report", "parse", log, log], ["bug", "show", FOREIGN]):
        done = kgym(*[str(word).replace("\0", "") for word in words])
        assert "x" in done.out + done.err
        assert not steered(done.out + done.err), words


@pytest.mark.usefixtures("platform")
def test_a_build_that_prints_everything(kgym: Kgym, fake_build: BuildSpec) -> None:
    octal = FOREIGN.encode("latin-1").translate(None, b"\0")
    printed = "".join(f"\\{byte:03o}" for byte in octal)
    loud = Edit(
        file="Makefile", original="@objcopy -S $< $@", replacement=f"@printf '{printed}\\n'; exit 1"
    )
    patch = Patch(name="[bold]p[/] [/x]", edits=[loud])
    spec = fake_build.model_copy(update={"patches": [patch]})
    request = JobRequest(steps=[spec]).model_dump_json()
    done = kgym("job", "submit", "-", "--wait", stdin=request)
    for words in (["show", 1], ["log", 1], ["list"], ["wait", 1]):
        again = kgym("job", *words)
        assert again.status in (0, 2, 3), again.err
        done = dataclasses.replace(done, out=done.out + again.out, err=done.err + again.err)
    assert "xx" in done.out + done.err or "\ufffdx" in done.out + done.err
    assert not steered(done.out + done.err)
    assert "Traceback" not in done.err

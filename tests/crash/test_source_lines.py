"""Source lines in a report: from the debug information of a small real program."""

import subprocess
from pathlib import Path

import pytest

from kgym.crash.report import CrashReport
from kgym.crash.report.source_lines import InlinedCall
from kgym.crash.symbolize import Symbols, read_places, symbolize
from kgym.host.proc import ProgramFailed
from tests.crash.reports import report_of

# Stands for a kernel: init/main.c with start_kernel() tells the folder, fs/my.c crashes.
MAIN = "void my_crash(int *p);\nvoid start_kernel(void) { my_crash(0); }\n"
MY = Path(__file__).with_name("inlined.c").read_text()


@pytest.fixture(scope="module")
def vmlinux(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("linux")
    for name, text in {"init/main.c": MAIN, "fs/my.c": MY}.items():
        (folder / name).parent.mkdir()
        (folder / name).write_text(text)
    sources = [str(folder / name) for name in ("init/main.c", "fs/my.c")]
    options = ["-g", "-O1", "-nostdlib", "-static", "-Wl,-e,start_kernel"]
    folder.chmod(0o755)
    subprocess.run(
        ["gcc", *options, "-o", str(folder / "vmlinux"), *sources], check=True, timeout=60
    )
    return folder / "vmlinux"


def crash(vmlinux: Path, size: int | None = None) -> CrashReport:
    listing = subprocess.run(
        ["nm", "-n", str(vmlinux)], capture_output=True, text=True, check=True, timeout=60
    )
    starts = {line.split()[2]: int(line.split()[0], 16) for line in listing.stdout.splitlines()}
    size = size or starts["after"] - starts["my_crash"]
    # the first instruction of my_crash() is not inlined; it has the store behind it
    report = report_of(
        "BUG: kernel NULL pointer dereference, address: 0000000000000000\n"
        f"RIP: 0010:my_crash+0x4/{size:#x}\n"
        "Call Trace:\n"
        f" my_crash+0x5/{size:#x}\n"
        " of_a_module+0x1/0x2 [my_module]\n"
        " unknown+0x1/0x2\n"
        " unknown_too+0x1/0x2\n"
    )
    assert report.guilty_file is None
    return report


@pytest.mark.anyio
async def test_frames_get_their_lines_and_what_was_inlined(vmlinux: Path) -> None:
    (report,) = await symbolize([crash(vmlinux)], vmlinux)
    inlined, crashed = report.frames[:2]
    assert (inlined.function, inlined.file, inlined.line) == ("my_inlined", "fs/my.c", 3)
    assert inlined.inlined
    assert (crashed.function, crashed.file, crashed.line) == ("my_crash", "fs/my.c", 8)
    assert "RIP: 0010:my_inlined fs/my.c:3 [inline]\nRIP: 0010:my_crash+0x4/" in report.text
    assert " of_a_module+0x1/0x2 [my_module]\n unknown+0x1/0x2\n" in report.text


@pytest.mark.anyio
async def test_the_file_to_blame_is_known_with_the_lines(vmlinux: Path) -> None:
    (report,) = await symbolize([crash(vmlinux)], vmlinux)
    assert report.guilty_file == "fs/my.c"


@pytest.mark.anyio
async def test_the_title_stays_when_the_report_with_its_lines_is_read_again(vmlinux: Path) -> None:
    (report,) = await symbolize([crash(vmlinux)], vmlinux)
    again = report_of(report.text)
    assert (again.title, again.guilty_file) == (report.title, report.guilty_file)


@pytest.mark.anyio
async def test_a_function_of_another_size_is_another_kernels(vmlinux: Path) -> None:
    before = crash(vmlinux, size=0x1000)
    assert await symbolize([before], vmlinux) == [before]


@pytest.mark.anyio
async def test_what_is_no_program_is_refused(tmp_path: Path, vmlinux: Path) -> None:
    (tmp_path / "vmlinux").write_text("nothing of the kind")
    tmp_path.chmod(0o755)
    with pytest.raises(ProgramFailed):
        await symbolize([crash(vmlinux)], tmp_path / "vmlinux")


def test_of_several_functions_of_one_name_the_one_of_that_size_is_meant() -> None:
    symbols = Symbols(["1000 t twice", "1010 t other", "1030 t twice", "1070 T end"])
    assert symbols.address(InlinedCall("twice", 4, 0x10, returns=False)) == 0x1004
    assert symbols.address(InlinedCall("twice", 4, 0x40, returns=True)) == 0x1033
    assert symbols.address(InlinedCall("twice", 4, 0x20, returns=True)) is None


def test_of_several_of_one_size_none_is() -> None:
    symbols = Symbols(["1000 t twice", "1010 t twice", "1020 T end"])
    assert symbols.address(InlinedCall("twice", 4, 0x10, returns=False)) is None


def test_places_that_the_tool_does_not_know_are_left_out() -> None:
    lines = ["0x1004", "f", "/k/fs/a.c:7 (discriminator 3)", "0x2000", "??", "??:0", "0x3000"]
    assert [(at, [place.line for place in places]) for at, places in read_places(lines)] == [
        (0x1004, [7]),
        (0x2000, []),
        (0x3000, []),
    ]

"""Build the kernel's own tests of the files that a patch changes.

The sources are those of the unpatched tree: a patch that changes a test, a makefile of the tests or
a header changes nothing here. Makefiles and compilers run in the sandbox.
"""

import asyncio
import fnmatch
import re
import tarfile
import tomllib
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path

from pydantic import Field

from kgym.api.steps import MOST_TESTS, BuildArtifact, KernelTests, Strict
from kgym.configs import CONFIGS
from kgym.errors import UserError
from kgym.host import proc, sandbox
from kgym.host.quoted_words import quoted
from kgym.worker import memo
from kgym.worker.context import StepContext
from kgym_builder.kbuild.working_tree import PLACE, Tree

# Version of how tests are built; part of the memo's key.
_LAYOUT = 1
SELFTESTS = "tools/testing/selftests"
KUNIT = "kunit"
# Bytes of all stripped programs: guests hold them in memory.
_MOST_BYTES = 64 << 20
_SECONDS = 180.0
_SLOW = "it does not build in time"
# Bytes of a program's build log that are read.
_MOST_LOG = 64 << 10
_ERROR = re.compile(r"\berror: |cannot find -l")
# Arguments: KUNIT, SELFTESTS, PLACE, _SLOW. Reads a line for each program: folder, file, number.
# Makes NUMBER and NUMBER.log in /out.
#
# First, what programs include. `make headers` makes the same (scripts/headers_install.sh), with
# several processes for each of a thousand files.
#
# Guests have no libc, hence `-static`. Sanitizers of user space do not link statically, and newer
# compilers find new warnings in old sources.
_BUILD = Path(__file__).with_name("kernel_tests.sh").read_text()


# Makes an unpatched tree, whose changes go to a new folder.
NewTree = Callable[[Path], Awaitable[Tree]]


class FileTests(Strict):
    """The tests of the files that match one of these shell patterns."""

    files: list[str] = Field(min_length=1)
    folder: str = Field(description="below SELFTESTS, or KUNIT")
    run: list[str] = Field(min_length=1, description="programs in it with arguments, or suites")
    needs: list[str] = Field([], description="further programs that those run")

    def match(self, path: str) -> bool:
        """Return whether these are tests of a file."""
        return any(fnmatch.fnmatchcase(path, pattern) for pattern in self.files)


def table() -> list[FileTests]:
    """Return `configs/kernel_tests.toml`, where the tests nearest to a file come first."""
    tables = tomllib.loads((CONFIGS / "kernel_tests.toml").read_text())
    return [FileTests.model_validate(row) for row in tables["tests"]]


async def build(
    run: StepContext, identity: str, changed: Collection[str], unpatched: NewTree
) -> KernelTests:
    """Build the tests of the `changed` files; keep their programs as an artifact of the step.

    `unpatched` makes a tree of the SuiteCache entry `identity`.
    """
    rows = [row for row in table() if any(map(row.match, changed))]
    without = [path for path in sorted(changed) if not any(row.match(path) for row in rows)]
    built = await _built(run, identity, rows, unpatched) if rows else KernelTests()
    left_out = [*(f"{path}: no tests of it are known" for path in without), *built.left_out]
    return built.model_copy(update={"left_out": left_out[:MOST_TESTS]})


async def _built(
    run: StepContext, identity: str, rows: Collection[FileTests], unpatched: NewTree
) -> KernelTests:
    lines = list(dict.fromkeys(f"{row.folder}/{line}" for row in rows for line in row.run))
    needed = [f"{row.folder}/{name}" for row in rows for name in row.needs]
    programs = list(dict.fromkeys([*(line.split()[0] for line in lines), *needed]))
    name = memo.key("kernel-tests", _LAYOUT, identity, lines, programs)
    if known := await memo.recall(run, name, KernelTests):
        return known
    folder = run.folder / "kernel-tests"
    tree = (await unpatched(folder / "tree")).with_hosts_programs()
    archive = run.folder / BuildArtifact.TESTS
    try:
        out = sandbox.prepare(folder / "out")
        stopped = await _make(tree, programs, out)
        refused = await asyncio.to_thread(_pack, programs, out, archive, stopped)
    finally:
        await asyncio.to_thread(sandbox.remove, folder)
    await run.keep(archive, move=True)
    left_out = [f"{path}: {why}" for path, why in refused.items()]
    made = [line for line in lines if line.split()[0] not in refused]
    left_out += [f"{line}: there are too many tests" for line in made[MOST_TESTS:]]
    built = KernelTests(tests=made[:MOST_TESTS], left_out=left_out[:MOST_TESTS])
    # Not remembered if the host was too busy: that is no property of the tests.
    if not any(_SLOW in why for why in refused.values()):
        await memo.remember(run, name, built, run.artifacts[-1:])
    return built


async def _make(tree: Tree, programs: Collection[str], out: Path) -> str:
    """Make programs in `out`; return why the rest was not tried, or an empty string."""
    lines = [f"{path.rpartition('/')[0]} {path.rpartition('/')[2]}" for path in programs]
    stdin = "".join(f"{line} {number}\n" for number, line in enumerate(lines)).encode()
    argv = ["sh", "-c", _BUILD, "sh", KUNIT, SELFTESTS, PLACE, _SLOW]
    try:
        await tree.run(argv, stdin=stdin, timeout=_SECONDS, check=False, out=out)
    except proc.ProgramTimedOut as error:
        return f"{_SLOW}: {error.message}"
    except UserError as error:  # over a limit of the sandbox
        return f"it does not build: {error.message}"
    return ""


def _pack(programs: Collection[str], out: Path, archive: Path, stopped: str) -> dict[str, str]:
    """Pack the programs that were made, by their file names; return why others were not."""
    refused: dict[str, str] = {}
    left = _MOST_BYTES
    with tarfile.open(archive, "w", format=tarfile.USTAR_FORMAT) as tar:
        for number, path in enumerate(programs):
            made = out / str(number)
            if not _is_file(made):
                refused[path] = stopped or f"it does not build: {_why(out / f'{number}.log')}"
            elif (size := made.stat().st_size) > left:
                refused[path] = "its program is too large"
            else:
                left -= size
                member = tarfile.TarInfo(Path(path).name)
                member.size = size
                with made.open("rb") as file:
                    tar.addfile(member, file)
    return refused


def _is_file(path: Path) -> bool:
    # Makefiles of the tree write there, too.
    return path.is_file() and not path.is_symlink()


def _why(log: Path) -> str:
    """Return the line of a build's log that shows why it failed."""
    if not _is_file(log):
        return "it leaves no log"
    with log.open("rb") as file:
        text = file.read(_MOST_LOG).decode(errors="replace")
    lines = [line for line in text.splitlines() if line.strip()] or ["it prints nothing"]
    return quoted(next((line for line in lines if _ERROR.search(line)), lines[-1]))

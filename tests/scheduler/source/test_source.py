"""A kernel's source over REST: what is read, listed, searched and looked up of a job's tree."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kgym.api.jobs import JobRequest, JobView
from kgym.api.source import FileLook, FolderLook, SearchLook, SymbolLook
from kgym.api.states import State
from kgym.api.steps import (
    BuildSpec,
    Edit,
    KernelConfig,
    Patch,
    SourceResult,
    SourceSpec,
    TarballSource,
)
from kgym.client import Client, Refused
from kgym_cli.platforms.embedded_platform import Platform
from tests.conftest import ROOT

FILES = {
    "lib/latin.c": "/* caf\xe9 */\nint latin;\n".encode("latin1"),
    "lib/blob.bin": b"\0\1\2" * 50,
    "lib/long.c": b"int long_one;\n" + b"/* " + b"x" * 200_000 + b" needle_in_hay */\n",
    "lib/huge.h": b"#define REGISTER_1 1\n" * 60_000 + b"#define needle_in_huge 1\n",
}
LINKS = {"lib/link.h": "names.h", "lib/out.h": "../../../../etc/passwd", "lib/circle": "circle"}
RENAMED = Edit(
    file="kernel/fork.c", original="fork_one(int parent)", replacement="fork_two(int parent)"
)
EDIT = Patch(name="p", edits=[RENAMED])


def packed(folder: Path) -> TarballSource:
    """The small make tree, and files that are unlike kernel code."""
    path = folder / "linux.tar"
    with tarfile.open(path, "w") as archive:
        archive.add(ROOT / "tests" / "fakelinux", "linux")
        archive.add(Path(__file__).parent / "tree", "linux")
        for name, content in FILES.items():
            member = tarfile.TarInfo(f"linux/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        for name, target in LINKS.items():
            member = tarfile.TarInfo(f"linux/{name}")
            member.type, member.linkname = tarfile.SYMTYPE, target
            archive.addfile(member)
    return TarballSource(url=str(path), sha256=hashlib.sha256(path.read_bytes()).hexdigest())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> TarballSource:
    return packed(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[Client]:
    with Platform(folder) as platform, Client(platform.url) as client:
        yield client


@pytest.fixture(scope="module")
def job(client: Client, source: TarballSource) -> int:
    done = client.wait(client.submit(JobRequest(steps=[SourceSpec(source=source)])).id)
    assert done.state is State.SUCCEEDED, done.steps[0].failure
    return done.id


def text(client: Client, job: int, path: str, **how: Any) -> str:
    return client.read_source(job, FileLook(path=path, **how)).text


def grep(client: Client, job: int, pattern: str, **how: Any) -> list[tuple[str, int, str]]:
    result = client.search_source(job, SearchLook(pattern=pattern, **how))
    return [(match.path, match.line, match.text) for match in result.matches]


def refusal(call: Any) -> Refused:
    with pytest.raises(Refused) as caught:
        call()
    return caught.value


def test_a_file_is_read_whole_or_by_lines(client: Client, job: int) -> None:
    whole = client.read_source(job, FileLook(path="kernel/fork.c"))
    original = (ROOT / "tests/fakelinux/kernel/fork.c").read_text()
    assert (whole.text, whole.lines, whole.cut) == (original, original.count("\n"), False)
    part = client.read_source(job, FileLook(path="kernel/./fork.c", first=3, last=4))
    assert part.text == "".join(original.splitlines(keepends=True)[2:4])
    assert (part.path, part.first, part.last, part.lines) == ("kernel/fork.c", 3, 4, whole.lines)
    behind = client.read_source(job, FileLook(path="kernel/fork.c", first=500))
    assert (behind.text, behind.last) == ("", whole.lines)


@pytest.mark.thorough
def test_what_builds_add_is_in_the_tree(client: Client, source: TarballSource, job: int) -> None:
    """The tree is as builds see it: here, what the job's own patches make of it."""
    asked = JobRequest(steps=[SourceSpec(source=source, patches=[EDIT])])
    patched = client.wait(client.submit(asked).id)
    result = patched.steps[0].result
    assert isinstance(result, SourceResult)
    assert not result.made  # by the first job for this source
    assert "fork_two(int parent)" in text(client, patched.id, "kernel/fork.c")
    assert "fork_two" not in text(client, job, "kernel/fork.c")
    bad = Patch(edits=[RENAMED.model_copy(update={"original": "nowhere"})])
    asked = JobRequest(steps=[SourceSpec(source=source, patches=[bad])])
    failed = client.wait(client.submit(asked).id)
    assert failed.steps[0].failure is not None
    assert failed.steps[0].failure.reason == "patch_does_not_apply"
    refused = refusal(lambda: text(client, failed.id, "kernel/fork.c"))
    assert (refused.reason, refused.status) == ("step_unfinished", 409)


def test_patches_of_a_look_are_seen_by_each_kind_of_look(client: Client, job: int) -> None:
    new = Patch(name="n", diff="--- /dev/null\n+++ b/lib/new/n.c\n@@ -0,0 +1 @@\n+int brand_new;\n")
    patches = [EDIT, new]
    assert "fork_two" in text(client, job, "kernel/fork.c", patches=patches)
    assert grep(client, job, r"int fork_two\(int", patches=patches) == [
        ("kernel/fork.c", 6, "int fork_two(int parent)")
    ]
    old = grep(client, job, r"fork_one\(int parent\)$", patches=patches)
    assert "kernel/fork.c" not in {path for path, _, _ in old}
    listed = client.list_source(job, FolderLook(path="lib/new", patches=patches))
    assert [entry.name for entry in listed.entries] == ["n.c"]
    symbol = client.find_symbol(job, SymbolLook(name="fork_two", patches=patches))
    assert [(place.path, place.line) for place in symbol.definitions] == [("kernel/fork.c", 6)]
    assert client.find_symbol(job, SymbolLook(name="fork_two")).definitions == []
    assert client.find_symbol(job, SymbolLook(name="brand_new", patches=patches)).definitions
    refused = refusal(lambda: text(client, job, "lib/names.h", patches=[EDIT, EDIT]))
    assert refused.reason == "patch_does_not_apply"


def test_folders_are_listed(client: Client, job: int) -> None:
    top = client.list_source(job, FolderLook())
    kinds = {entry.name: entry.kind for entry in top.entries}
    assert (kinds["kernel"], kinds["Makefile"]) == ("folder", "file")
    lib = {entry.name: entry for entry in client.list_source(job, FolderLook(path="lib/")).entries}
    assert (lib["blob.bin"].kind, lib["blob.bin"].size) == ("binary", 150)
    assert (lib["link.h"].kind, lib["link.h"].target) == ("link", "names.h")
    refused = refusal(lambda: client.list_source(job, FolderLook(path="Makefile")))
    assert refused.reason == "not_a_folder"


def test_lines_are_searched_by_expression_glob_and_limit(client: Client, job: int) -> None:
    assert grep(client, job, r"^int fork_one\(", glob="*.c") == [
        ("kernel/fork.c", 6, "int fork_one(int parent)")
    ]
    assert grep(client, job, "FORK_ONE", glob="kernel/*.c", ignore_case=True)
    assert grep(client, job, "FORK_ONE") == []
    headers = grep(client, job, "fork_one", glob="**/*.h")
    assert {path for path, _, _ in headers} == {"include/linux/kernel.h"}
    assert "fs/open.c" in {path for path, _, _ in grep(client, job, "include", glob="{fs,lib}/**")}
    cut = client.search_source(job, SearchLook(pattern="int", limit=2))
    assert (len(cut.matches), cut.cut) == (2, "limit")
    assert client.search_source(job, SearchLook(pattern="int", limit=1000)).cut is None
    (long,) = client.search_source(job, SearchLook(pattern="needle_in_hay")).matches
    assert (long.path, long.line, len(long.text)) == ("lib/long.c", 2, 1000)


def test_names_are_looked_up_with_those_who_call(client: Client, job: int) -> None:
    def look(name: str) -> Any:
        return client.find_symbol(job, SymbolLook(name=name))

    helper = look("helper_of")
    assert [(d.path, d.line, d.last, d.kind) for d in helper.definitions] == [
        ("lib/calls.c", 8, 13, "function")
    ]
    assert [(u.line, u.function, u.call) for u in helper.uses] == [
        (5, "sys_open_it", True),
        (16, None, False),
    ]
    places = {
        name: [(place.kind, place.line, place.last) for place in look(name).definitions]
        for name in (
            *("point", "colour", "GREEN_ONE", "pair_t", "TWICE", "one_line"),
            *("sys_open_it", "counter_of_calls", "table_of"),
        )
    }
    assert places == {
        "point": [("struct", 1, 3)],
        "colour": [("enum", 5, 8)],
        "GREEN_ONE": [("enumerator", 7, 7)],
        "pair_t": [("typedef", 10, 12)],
        "TWICE": [("macro", 14, 15)],
        "one_line": [("function", 17, 17)],
        "sys_open_it": [("function", 3, 6)],
        "counter_of_calls": [("variable", 1, 1)],
        "table_of": [("variable", 15, 17)],
    }
    nothing = look("no_such_name")
    assert (nothing.definitions, nothing.uses, nothing.cut) == ([], [], None)


@pytest.mark.attack
def test_no_path_leads_out_of_the_tree(client: Client, job: int) -> None:
    for path in ("/etc/passwd", "../x", "lib/../../x", "..", "lib/out.h", "a\nb", "\0"):
        refused = refusal(lambda path=path: text(client, job, path))
        assert refused.reason in {"path_outside", "file_not_found", "invalid_request"}, path
        assert "root:" not in str(refused)
    assert refusal(lambda: text(client, job, "lib/circle")).reason == "not_a_file"
    assert "struct point" in text(client, job, "lib/link.h")
    assert refusal(lambda: client.list_source(job, FolderLook(path="../"))).status == 422


@pytest.mark.attack
def test_what_is_no_text_or_large_is_refused_or_cut(client: Client, job: int) -> None:
    assert refusal(lambda: text(client, job, "lib/blob.bin")).reason == "binary_file"
    latin = client.read_source(job, FileLook(path="lib/latin.c"))
    assert (latin.lossy, latin.text.splitlines()[1]) == (True, "int latin;")
    huge = client.read_source(job, FileLook(path="lib/huge.h"))
    assert (huge.cut, len(huge.text) <= 1 << 20, huge.lines) == (True, True, 60_001)
    rest = client.read_source(job, FileLook(path="lib/huge.h", first=huge.last + 1))
    assert (rest.cut, rest.text.endswith("needle_in_huge 1\n")) == (False, True)
    assert grep(client, job, "needle_in_huge") == []  # over 1 MiB


@pytest.mark.attack
@pytest.mark.parametrize(
    "pattern", ["(", "(a{1000}){1000}", "((a?){60}){60}", "\\1(a)", "a**", "[b"]
)
def test_an_expression_that_is_none_or_explodes_is_refused(
    client: Client, job: int, pattern: str
) -> None:
    refused = refusal(lambda: client.search_source(job, SearchLook(pattern=pattern)))
    assert refused.reason == "bad_pattern"


@pytest.mark.attack
def test_an_expression_that_backtracks_for_ever_elsewhere_is_linear_here(
    client: Client, job: int
) -> None:
    assert client.search_source(job, SearchLook(pattern=r"^(x+x+)+y$")).matches == []
    assert grep(client, job, "foo\nint") == []  # a line at a time


def test_a_missing_file_is_told_with_those_like_it(client: Client, job: int) -> None:
    refused = refusal(lambda: text(client, job, "mm/fork.c"))
    assert (refused.reason, refused.status) == ("file_not_found", 404)
    assert "kernel/fork.c" in refused.message
    assert refusal(lambda: text(client, job, "kernel")).reason == "not_a_file"
    assert refusal(lambda: text(client, 10**9, "kernel/fork.c")).reason == "job_not_found"
    assert refusal(lambda: text(client, job, "kernel/fork.c", step=5)).reason == "no_source"


@pytest.mark.thorough
def test_a_build_has_its_source_once_somebody_has_made_it_readable(
    client: Client, fake_source: TarballSource
) -> None:
    config = KernelConfig(base="allnoconfig", fragments=["CONFIG_BASE=y\n"])
    edit = Edit(file="kernel/watch_queue.c", original="Ignore any", replacement="Seen: any")
    spec = BuildSpec(source=fake_source, config=config, patches=[Patch(name="p", edits=[edit])])
    built = client.wait(client.submit(JobRequest(steps=[spec])).id)
    assert built.state is State.SUCCEEDED, built.steps[0].failure
    path = "kernel/watch_queue.c"
    refused = refusal(lambda: text(client, built.id, path))
    assert (refused.reason, refused.status) == ("source_not_made", 409)
    asked = JobRequest.model_validate({"steps": [refused.details["step"]]})
    made: JobView = client.wait(client.submit(asked).id)
    assert made.state is State.SUCCEEDED
    assert "Seen: any" in text(client, built.id, path)
    assert text(client, made.id, path) == text(client, built.id, path)

"""The build step on a small make tree that behaves like a kernel."""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kgym.api.steps import (
    Ahead,
    BuildSpec,
    Edit,
    GitSource,
    KernelConfig,
    PackageSource,
    Patch,
    Reproducer,
    TarballSource,
)
from kgym.errors import UserError
from kgym_builder.build.build_step import Builder
from kgym_builder.suitecache.suitecache import SuiteCache
from tests.builder.conftest import FakeLinux
from tests.conftest import ANYWHERE, ROOT, NewRun
from tests.refused import refused
from tests.tables import json_rows

pytestmark = pytest.mark.anyio


def patched(spec: BuildSpec, *edits: Edit, diff: str | None = None) -> BuildSpec:
    patch = Patch(diff=diff, edits=list(edits))
    return spec.model_copy(update={"patches": [patch]})


def edit(original: str, replacement: str, file: str = "kernel/watch_queue.c") -> Edit:
    return Edit(file=file, original=original, replacement=replacement)


REGRESS = edit("type >= WATCH_TYPE__NR", "type >= 100")


async def test_a_build_leaves_kernel_config_and_log(linux: FakeLinux) -> None:
    run = linux.new_run(linux.spec)
    result = await linux.builder(run)
    names = {artifact.name for artifact in run.artifacts}
    assert names >= {"bzImage", "vmlinux", "System.map", "config", "build.log"}
    assert result.kernel_release == "6.1.0"
    assert result.objects_compiled == 4
    assert not result.tree_cached


async def test_a_patched_build_compiles_only_what_the_patch_touches(linux: FakeLinux) -> None:
    await linux.build()
    result = await linux.build(patched(linux.spec, REGRESS))
    assert result.tree_cached
    assert result.objects_compiled == 1
    assert 0 < result.seconds["link"] <= result.seconds["make"]


async def test_a_header_patch_compiles_every_file_that_includes_it(linux: FakeLinux) -> None:
    await linux.build()
    header = edit("int fork_one(int parent);", "int fork_one(int p);", "include/linux/kernel.h")
    assert (await linux.build(patched(linux.spec, header))).objects_compiled == 4


async def test_the_same_build_gives_the_same_bytes(linux: FakeLinux) -> None:
    sums = []
    for cache in ("use", "refresh"):
        run = linux.new_run(linux.spec.model_copy(update={"cache": cache}))
        await linux.builder(run)
        sums.append(
            {
                artifact.name: artifact.sha256
                for artifact in run.artifacts
                if artifact.name != "build.log"
            }
        )
    assert sums[0] == sums[1]


async def test_a_patch_of_one_build_is_not_seen_by_the_next(linux: FakeLinux) -> None:
    again = linux.spec.model_copy(update={"cache": "fresh"})
    first, third = linux.new_run(linux.spec), linux.new_run(again)
    await linux.builder(first)
    await linux.build(patched(linux.spec, REGRESS))
    result = await linux.builder(third)
    assert result.objects_compiled == 0
    assert first.artifacts[0].sha256 == third.artifacts[0].sha256


async def test_two_builds_that_want_the_same_tree_make_it_once(linux: FakeLinux) -> None:
    results = await asyncio.gather(*(linux.build() for _ in range(3)))
    assert sorted(result.tree_cached for result in results) == [False, True, True]


async def test_symbols_that_kconfig_drops_are_named(linux: FakeLinux) -> None:
    config = KernelConfig(base="tinyconfig", fragments=["CONFIG_BASE=y\nCONFIG_NO_SUCH=y\n"])
    result = await linux.build(config=config)
    (dropped,) = result.dropped_symbols
    assert (dropped.symbol, dropped.wanted, dropped.got) == ("NO_SUCH", "y", "n")
    # Who asks for something else of which kconfig makes the same is told of that.
    config = KernelConfig(base="tinyconfig", fragments=["CONFIG_BASE=y\nCONFIG_OTHER=m\n"])
    result = await linux.build(config=config)
    assert result.memoised
    assert [each.symbol for each in result.dropped_symbols] == ["OTHER"]


async def test_a_full_config_is_used_as_it_is(linux: FakeLinux) -> None:
    config = KernelConfig(full="CONFIG_EXTRA=y\n# CONFIG_BASE is not set\n")
    result = await linux.build(config=config)
    assert result.dropped_symbols == []


async def test_what_the_source_lacks_of_a_foreign_config_is_named(linux: FakeLinux) -> None:
    """Symbols of other kernels and compilers, with the line ends of another system."""
    foreign = ("KMSAN=y", "ANDROID_VENDOR_HOOKS=y", "NO_SUCH_DRIVER=m", 'NO_SUCH_NAME="x"')
    lines = ["# Linux/x86 6.1.0 Kernel Configuration", "CONFIG_BASE=y"]
    text = "\r\n".join([*lines, *(f"CONFIG_{line}" for line in foreign), ""])
    result = await linux.build(config=KernelConfig(full=text))
    dropped = [f"{each.symbol}={each.wanted}" for each in result.dropped_symbols]
    assert dropped == list(foreign)


@pytest.mark.parametrize(
    ("config", "symbol"),
    [
        ({"full": "#\n# Linux/arm64 6.1.0 Kernel Configuration\n#\nCONFIG_ARM64=y\n"}, "ARM64"),
        ({"full": "# CONFIG_64BIT is not set\nCONFIG_X86_32=y\nCONFIG_X86=y\n"}, "X86_32"),
        ({"base": "defconfig", "fragments": ["CONFIG_BASE=y\n", "CONFIG_RISCV=y\r\n"]}, "RISCV"),
    ],
)
async def test_other_architectures(linux: FakeLinux, config: dict[str, Any], symbol: str) -> None:
    """A config of another architecture is refused before anything is fetched."""
    nowhere = TarballSource(url="/no/where.tar", sha256="0" * 64)
    more = {"source": nowhere, "config": KernelConfig.model_validate(config)}
    error = await linux.failure(linux.spec.model_copy(update=more))
    assert (error.reason, error.cause) == ("wrong_architecture", "user")
    assert f"(CONFIG_{symbol}=y), but kernels are built for x86_64 here" in error.message


@pytest.mark.parametrize("name", ["arm64", "riscv", "i386", "um"])
async def test_a_config_is_refused_by_its_title(linux: FakeLinux, name: str) -> None:
    text = f"#\n# Linux/{name} 5.15.0 Kernel Configuration\n#\nCONFIG_BASE=y\n"
    spec = linux.spec.model_copy(update={"config": KernelConfig(full=text)})
    error = await linux.failure(spec)
    assert (error.reason, error.cause) == ("wrong_architecture", "user")
    assert f"# Linux/{name} 5.15.0 Kernel Configuration" in error.message


@pytest.mark.parametrize(("title", "note"), json_rows(__file__, "config_versions.jsonl"))
async def test_a_config_of_another_version_is_told(linux: FakeLinux, title: str, note: str) -> None:
    text = f"#\n# {title}\n#\nCONFIG_BASE=y\n"
    spec = linux.spec.model_copy(update={"config": KernelConfig(full=text)})
    for memoised in (False, True):
        result = await linux.build(spec)
        assert (result.memoised, result.config_version) == (memoised, note)


async def test_what_a_config_says_of_its_compiler_is_no_wish(linux: FakeLinux) -> None:
    facts = (
        *('CC_VERSION_TEXT="gcc (Debian 10.2.1) 10.2.1"', "CC_IS_GCC=y", "GCC_VERSION=100201"),
        *("CLANG_VERSION=0", "AS_IS_GNU=y", "AS_VERSION=23502", "LD_IS_BFD=y", "LD_VERSION=23502"),
        *("LLD_VERSION=0", "CC_CAN_LINK=y", "CC_HAS_ASM_GOTO=y", "CC_NO_ARRAY_BOUNDS=y"),
        *("GCC11_NO_ARRAY_BOUNDS=y", "PAHOLE_VERSION=120", "PAHOLE_HAS_SPLIT_BTF=y"),
        *("RUSTC_VERSION=107000", 'RUSTC_VERSION_TEXT="rustc 1.70"', "TOOLS_SUPPORT_RELR=y"),
        *("AS_AVX512=y", "LD_ORPHAN_WARN=y", "RUST_IS_AVAILABLE=y"),
    )
    wishes = (
        *("CC_OPTIMIZE_FOR_SIZE", "LD_DEAD_CODE_DATA_ELIMINATION", "GCC_PLUGINS", "RUST"),
        *("CC_STACKPROTECTOR", "MODVERSIONS"),
    )
    lines = [*(f"CONFIG_{each}" for each in facts), *(f"CONFIG_{each}=y" for each in wishes)]
    config = KernelConfig(full="\n".join(["CONFIG_BASE=y", *lines]) + "\n")
    result = await linux.build(config=config)
    assert [each.symbol for each in result.dropped_symbols] == list(wishes)


async def test_a_config_that_speaks_of_other_architectures_is_taken(linux: FakeLinux) -> None:
    text = "CONFIG_BASE=y\n# CONFIG_X86_32 is not set\nCONFIG_ARM64_ERRATA=y\n"
    result = await linux.build(config=KernelConfig(base="allnoconfig", fragments=[text]))
    assert [each.symbol for each in result.dropped_symbols] == ["ARM64_ERRATA"]


@pytest.mark.parametrize(
    ("keys", "got"),
    [("certs/ours.pem", '""'), ("/etc/keys.pem", '""'), ("../x", '""'), ("Makefile", None)],
)
async def test_missing_key_files_are_left_out(linux: FakeLinux, keys: str, got: str | None) -> None:
    """Files that a config names and the source lacks."""
    config = KernelConfig(full=f'CONFIG_BASE=y\nCONFIG_SYSTEM_TRUSTED_KEYS="{keys}"\n')
    result = await linux.build(config=config)
    dropped = [(each.symbol, each.wanted, each.got) for each in result.dropped_symbols]
    assert dropped == ([("SYSTEM_TRUSTED_KEYS", f'"{keys}"', got)] if got else [])


async def test_btf_is_left_out_and_said_where_nothing_can_make_it(linux: FakeLinux) -> None:
    result = await linux.build(config=KernelConfig(full="CONFIG_BASE=y\nCONFIG_DEBUG_INFO_BTF=y\n"))
    dropped = [(each.symbol, each.wanted, each.got) for each in result.dropped_symbols]
    assert dropped == ([] if shutil.which("pahole") else [("DEBUG_INFO_BTF", "y", "n")])


async def test_a_config_line_that_is_none_is_refused_with_its_number(linux: FakeLinux) -> None:
    config = KernelConfig(base="allnoconfig", fragments=["CONFIG_BASE=y\nmake it fast\n"])
    spec = linux.spec.model_copy(update={"config": config})
    error = await linux.failure(spec)
    assert (error.reason, error.details["line"]) == ("config_rejected", 2)


async def test_what_make_finds_no_rule_for_is_told_before_all_warnings(linux: FakeLinux) -> None:
    rule = edit("bzImage: arch", "bzImage: certs/none.pem arch", "Makefile")
    warns = edit("return parent + 1;", "int unused; return parent + 1;", "kernel/fork.c")
    error = await linux.failure(patched(linux.spec, rule, warns))
    assert error.reason == "does_not_compile"
    assert error.message.startswith(
        "make bzImage failed: No rule to make target 'certs/none.pem', needed by 'bzImage'"
    )


async def test_a_patch_that_does_not_compile_gives_file_line_and_message(linux: FakeLinux) -> None:
    run = linux.new_run(patched(linux.spec, edit("return 0;", "return zero;")))
    with refused("does_not_compile") as caught:
        await linux.builder(run)
    diagnostics = caught.value.details["diagnostics"]
    assert isinstance(diagnostics, list)
    first = diagnostics[0]
    assert (first["file"], first["line"]) == ("kernel/watch_queue.c", 13)
    assert "'zero' undeclared" in first["message"]
    assert "build.log" in {artifact.name for artifact in run.artifacts}


async def test_an_undefined_reference_is_a_diagnostic_too(linux: FakeLinux) -> None:
    spec = patched(
        linux.spec,
        edit("return 0;", "return length(0) + fork_two();"),
        edit("int fork_one", "int fork_two(void);\nint fork_one", "include/linux/kernel.h"),
    )
    error = await linux.failure(spec)
    assert "undefined reference to `fork_two'" in error.message


async def test_a_stale_patch_fails_before_the_build(linux: FakeLinux, tmp_path: Path) -> None:
    spec = patched(linux.spec, diff="--- a/fs/open.c\n+++ b/fs/open.c\n@@ -3 +3 @@\n-no\n+yes\n")
    error = await linux.failure(spec)
    assert (error.reason, error.cause) == ("patch_does_not_apply", "user")
    assert not list((tmp_path / "storage").glob("suitecache/*"))


async def test_a_patch_through_a_symbolic_link_is_refused(linux: FakeLinux, tmp_path: Path) -> None:
    tree = tmp_path / "linked"
    subprocess.run(["cp", "-r", ROOT / "tests" / "fakelinux", tree], check=True, timeout=20)
    (tree / "out").symlink_to("/tmp")
    spec = linux.spec.model_copy(update={"source": committed(tree)})
    diff = "--- /dev/null\n+++ b/out/x\n@@ -0,0 +1 @@\n+x\n"
    assert (await linux.failure(patched(spec, diff=diff))).reason == "unsafe_patch"


async def test_a_hostile_makefile_stays_in_the_sandbox(linux: FakeLinux, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    spy = (
        f"X := $(shell (cat {secret}; touch {tmp_path}/pwned; id -u; cat /proc/net/route;"
        " cat /etc/shadow) >spy 2>&1)\nVERSION ="
    )
    # What the spy saw takes the kernel image's place, so that the test can read it.
    show = edit("@objcopy -S $< $@", "@cp spy $@", "Makefile")
    spec = patched(linux.spec, edit("VERSION =", spy, "Makefile"), show)
    run = linux.new_run(spec)
    await linux.builder(run)
    key = next(artifact.key for artifact in run.artifacts if artifact.name == "bzImage")
    seen = (tmp_path / "storage" / key).read_text()
    assert "the secret" not in seen
    assert "root:" not in seen
    assert "\n65534\n" in seen
    assert not (tmp_path / "pwned").exists()


async def test_a_linked_artifact_is_not_followed(linux: FakeLinux, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    spec = patched(linux.spec, edit("@objcopy -S $< $@", f"@ln -sf {secret} $@", "Makefile"))
    assert (await linux.failure(spec)).reason == "no_kernel"


async def test_an_aborted_build_leaves_nothing(linux: FakeLinux, tmp_path: Path) -> None:
    """Its processes are gone within two seconds on an idle host."""
    marker = "9182.7364"
    spec = patched(linux.spec, edit("@objcopy -S $< $@", f"sleep {marker}", "Makefile"))
    task = asyncio.create_task(linux.build(spec))
    await until(lambda: running(marker))
    start = time.monotonic()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await until(lambda: not running(marker))
    assert time.monotonic() - start < 10  # 2 where nothing else runs
    assert str(tmp_path) not in Path("/proc/mounts").read_text()


def running(marker: str) -> bool:
    listed = subprocess.run(["pgrep", "-f", f"^sleep {marker}"], check=False, capture_output=True)
    return listed.returncode == 0


async def until(condition: Callable[[], bool], limit: float = 100.0) -> None:
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.02)


def committed(tree: Path) -> GitSource:
    """Commit everything in the folder; return it as a source."""
    git = ["git", "-C", str(tree), "-c", "user.name=t", "-c", "user.email=t@localhost"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True, timeout=20, capture_output=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, timeout=20, capture_output=True)
    return GitSource(url=str(tree), commit=head.stdout.decode().strip())


async def test_later_commits_of_a_git_source_are_fetched(linux: FakeLinux, tmp_path: Path) -> None:
    tree = tmp_path / "git"
    subprocess.run(["cp", "-r", ROOT / "tests" / "fakelinux", tree], check=True, timeout=20)
    first = committed(tree)
    makefile = tree / "Makefile"
    makefile.write_text(makefile.read_text().replace("PATCHLEVEL = 1", "PATCHLEVEL = 2"))
    second = committed(tree)
    releases = []
    for source in (first, second, GitSource(url=str(tree), commit="no-such-branch")):
        spec = linux.spec.model_copy(update={"source": source})
        try:
            releases.append((await linux.build(spec)).kernel_release)
        except UserError as error:
            releases.append(error.reason)
    assert releases == ["6.1.0", "6.2.0", "source_not_found"]
    assert len(list((tmp_path / "cache" / "sources" / "repositories").glob("*/HEAD"))) == 1


async def test_a_repository_fetched_by_jobs_at_once(linux: FakeLinux, tmp_path: Path) -> None:
    tree = tmp_path / "git"
    subprocess.run(["cp", "-r", ROOT / "tests" / "fakelinux", tree], check=True, timeout=20)
    spec = linux.spec.model_copy(update={"source": committed(tree)})
    results = await asyncio.gather(*(linux.build(spec) for _ in range(3)))
    assert {result.kernel_release for result in results} == {"6.1.0"}


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (TarballSource(url="/nowhere/linux.tar", sha256="0" * 64), "source_not_found"),
        (TarballSource(url=str(ROOT / "LICENSE"), sha256="0" * 64), "source_checksum"),
        (GitSource(url="/nowhere/linux.git", commit="v6.1"), "source_not_found"),
        (GitSource(url="ext::sh -c id", commit="v6.1"), "source_not_allowed"),
        (PackageSource(names=["linux-source-0.1"]), "source_not_found"),
    ],
)
async def test_a_missing_source(linux: FakeLinux, source: TarballSource, reason: str) -> None:
    """The error names the reason."""
    spec = linux.spec.model_copy(update={"source": source})
    assert (await linux.failure(spec)).reason == reason


async def test_a_compiler_that_is_not_installed_is_named(linux: FakeLinux) -> None:
    error = await linux.failure(linux.spec.model_copy(update={"compiler": "gcc-3"}))
    assert (error.reason, error.cause) == ("no_compiler", "user")
    assert "no gcc-3; its compilers: " in error.message


async def test_backports_by_rule(tmp_path: Path, new_run: NewRun, fake_build: BuildSpec) -> None:
    """A backport is applied where its rules hold and its original occurs."""
    rules = tmp_path / "backports"
    rules.mkdir()
    body = (
        '[[edits]]\nfile = "kernel/fork.c"\noriginal = "parent + 1"\nreplacement = "parent + 2"\n'
    )
    for name, when in {
        "fits": 'kernel_before = "6.2"\ncompiler = "gcc"',
        "too-new": 'kernel_before = "5.0"',
        "clang-only": 'compiler = "clang"',
    }.items():
        (rules / f"{name}.toml").write_text(
            f'summary = "x"\nreferences = ["here"]\n[when]\n{when}\n{body}'
        )
    absent = '[[edits]]\nfile = "kernel/fork.c"\noriginal = "no such"\nreplacement = ""\n'
    (rules / "fixed-already.toml").write_text(
        f'summary = "x"\nreferences = ["here"]\n[when]\n{absent}'
    )
    builder = Builder(SuiteCache(tmp_path / "cache", rules, origins=ANYWHERE))
    result = await builder(new_run(fake_build))
    assert result.backports == ["fits"]


async def test_what_later_steps_rest_on_is_tried_before_anything_is_built(linux: FakeLinux) -> None:
    good = Edit(file="kernel/fork.c", original="parent + 1", replacement="parent + 2")
    stale = Edit(file="kernel/fork.c", original="not there", replacement="")

    def spec(edit: Edit, text: str, config: str) -> BuildSpec:
        ahead = Ahead(patches=[Patch(name="fix", edits=[edit])], programs=[Reproducer(text=text)])
        more: dict[str, object] = {"ahead": ahead}
        more |= {"config": KernelConfig(base="allnoconfig", fragments=[config])}
        return linux.spec.model_copy(update=more)

    fine, wrong = "int main(void) { return 0; }", "int main(void) { return x; }"
    for config in ("CONFIG_EXTRA=y\n", "CONFIG_BASE=y\n"):  # never built, and built before
        run = linux.new_run(spec(stale, fine, config))
        with pytest.raises(UserError, match="fix: the original of an edit occurs 0 times"):
            await linux.builder(run)
        assert not (run.folder / "build.log").exists()
        with pytest.raises(UserError, match="the reproducer does not compile"):
            await linux.build(spec(good, wrong, config))
        await linux.build()  # of the second config
    first = await linux.build(spec(good, fine, "CONFIG_BASE=y\n"))
    again = await linux.build(spec(good, fine, "CONFIG_BASE=y\n"))
    assert (first.memoised, again.memoised) == (True, True)
    assert "ahead" in first.seconds
    new = await linux.build(spec(good, fine, "CONFIG_EXTRA=y\n"))
    assert new.seconds["tree"] > new.seconds["make"]  # for which everything was built
    assert "ahead" not in again.seconds

"""What commands read: files however they are kept, standard input, options wherever they stand."""

import bz2
import gzip
import hashlib
import json
import lzma
import subprocess
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec, Reproducer, ReproduceSpec, StepKind, StepRef, StepResult
from kgym.errors import UserError
from kgym.worker.context import StepContext
from kgym_cli.inputs import compressed_files
from kgym_cli.platforms.embedded_platform import Platform
from tests.cli.conftest import Kgym
from tests.cli.test_check import bundle, good  # noqa: F401 - fixtures
from tests.cli.test_commands import LOG
from tests.cli.worked import working
from tests.results import built, ran

TITLE = "KASAN: use-after-free Read in demo_release"


def zstd(data: bytes) -> bytes:
    return subprocess.run(["zstd", "-q"], input=data, capture_output=True, check=True).stdout


COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "xz": lzma.compress,
    "zst": zstd,
    "bz2": lambda data: bz2.compress(data, 1),
}
each = pytest.mark.parametrize("suffix", COMPRESSORS)


# --- logs ---------------------------------------------------------------------------------------


@each
def test_a_compressed_log_has_its_crash(kgym: Kgym, tmp_path: Path, suffix: str) -> None:
    data = COMPRESSORS[suffix](LOG.encode())
    log = tmp_path / f"crash.log.{suffix}"
    log.write_bytes(data)
    assert kgym("report", "parse", log, "--json").json["title"] == TITLE
    assert kgym("report", "parse", "-", "--json", stdin=data).json["title"] == TITLE


@each
def test_of_a_log_in_several_streams_all_is_read(tmp_path: Path, suffix: str) -> None:
    log, pack = tmp_path / "log", COMPRESSORS[suffix]
    text = LOG.encode()
    log.write_bytes(pack(text) + (b"\0" * 8 if suffix == "xz" else b"") + pack(text))
    assert compressed_files.read(log) == 2 * text


@pytest.mark.thorough
@each
def test_of_a_log_that_is_cut_the_beginning_is_read(tmp_path: Path, suffix: str) -> None:
    log = tmp_path / "log"
    text = LOG.encode() + b"".join(b"%x\n" % (number**9) for number in range(1 << 15))
    data = COMPRESSORS[suffix](text)
    log.write_bytes(data[: -len(data) // 4])
    read = compressed_files.read(log, whole=False)
    assert len(LOG) < len(read) < len(text)
    assert text.startswith(read)


@each
@pytest.mark.parametrize("harm", [lambda data: data[: -len(data) // 4], lambda data: data + b"!"])
def test_of_a_damaged_patch_or_job_nothing_is_taken(
    kgym: Kgym, tmp_path: Path, suffix: str, harm: Callable[[bytes], bytes]
) -> None:
    file = tmp_path / "file"
    file.write_bytes(harm(COMPRESSORS[suffix](LOG.encode())))
    for command in (["check", "watch-queue-filter", file], ["job", "submit", file]):
        done = kgym(*command)
        assert (done.status, done.out) == (2, "")
        assert "is damaged" in done.err


@pytest.mark.thorough
@each
def test_a_bomb_is_refused(tmp_path: Path, suffix: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(COMPRESSORS[suffix](bytes(8 << 20)) * 2)
    assert len(compressed_files.read(log, 16 << 20)) == 16 << 20
    with pytest.raises(UserError, match="more than"):
        compressed_files.read(log, most=12 << 20)


@pytest.mark.parametrize(
    "data",
    [
        lzma.compress(LOG.encode())[:26],
        zstd(LOG.encode())[:20],
        bz2.compress(LOG.encode())[:40],
        b"PK\x03\x04rest",
        b"\x04\x22\x4d\x18rest",
    ],
)
def test_a_log_that_cannot_be_read_is_no_log_without_a_crash(
    kgym: Kgym, tmp_path: Path, data: bytes
) -> None:
    log = tmp_path / "log"
    log.write_bytes(data)
    done = kgym("report", "parse", log)
    assert (done.status, str(log) in done.err, done.out) == (2, True, "")


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(UserError, match="more than"):
        compressed_files.read(Path("/dev/zero"), 1 << 20)


def test_an_xz_file_that_wants_much_memory_gets_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    data = bytearray(lzma.compress(LOG.encode()))
    # Its block header: size, flags, filter 0x21, one byte of properties: the dictionary's size,
    # 40 for 4 GiB; padding, and a CRC32 (The .xz File Format, sections 3.1 and 5.3.1).
    assert data[12:16] == b"\x02\x00\x21\x01"
    data[16] = 40
    data[20:24] = zlib.crc32(data[12:20]).to_bytes(4, "little")
    log.write_bytes(data)
    with pytest.raises(UserError, match="nothing of it"):
        compressed_files.read(log, whole=False)


# --- patches ------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_patches_are_read_compressed_and_from_standard_input(
    kgym: Kgym,
    bundle: Path,  # noqa: F811
    good: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    text = good.read_bytes()
    paths = []
    for suffix, pack in COMPRESSORS.items():
        paths.append(tmp_path / f"{suffix}.patch.{suffix}")
        paths[-1].write_bytes(pack(text))
    done = kgym("check", bundle, *paths, "-", "--json", stdin=text)
    assert done.status == 0, done.out
    assert [patch["name"] for patch in done.json["patches"]] == [
        *(f"{suffix}.patch" for suffix in COMPRESSORS),
        "stdin",
    ]


def test_a_job_is_read_compressed_and_what_is_no_text_is_refused(
    kgym: Kgym, idle: Platform, build_job: str
) -> None:
    assert kgym("job", "submit", "-", stdin=gzip.compress(build_job.encode())).status == 0
    done = kgym("job", "submit", "-", stdin=b"\xff\xfe{}")
    assert (done.status, "Traceback" in done.err) == (2, False)


# --- options ------------------------------------------------------------------------------------


def test_the_server_may_be_named_anywhere(kgym: Kgym) -> None:
    server = ("--server", "http://127.0.0.1:1")
    for words in (
        [*server, "job", "list"],
        ["job", *server, "list"],
        ["job", "list", *server],
        ["job", "show", "7", *server, "--json"],
        ["worker", "list", *server],
        ["bug", "reproduce", "watch-queue-filter", *server],
        ["demo", *server],
    ):
        done = kgym(*words)
        assert (done.status, "http://127.0.0.1:1" in done.err) == (3, True), words


# --- several jobs -------------------------------------------------------------------------------


@pytest.mark.thorough
def test_several_jobs_are_waited_for_and_restarted(
    kgym: Kgym, idle: Platform, fake_build: BuildSpec, data: Path
) -> None:
    request = JobRequest(steps=[fake_build]).model_dump_json()
    for _ in range(3):
        kgym("job", "submit", "-", stdin=request)
    failing = {"2"}

    def build(run: StepContext) -> StepResult:
        if str(run.assignment.job_id) in failing:
            raise UserError("broken", "it is broken")
        return built()

    with working(idle, data, {StepKind.BUILD: build}):
        done = kgym("--server", idle.url, "job", "wait", 1, 2, 3, 1, "--json")
        lines = list(map(json.loads, done.out.splitlines()))
        assert [(job["id"], job["state"]) for job in lines] == [
            (1, "succeeded"),
            (2, "failed"),
            (3, "succeeded"),
        ]
        assert done.status == 2
        assert "job 2 step 0: failed" in done.err
        failing.clear()
        again = kgym("--server", idle.url, "job", "restart", 3, 2, "--from-step", 0, "--wait")
        assert again.status == 0, again.err
        assert "job 3: Built: " in again.out
        assert "job 2: Built: " in again.out
    assert kgym("job", "restart", 1, 3).out.count("job") == 2
    assert kgym("job", "wait").status == 2
    assert kgym("job", "wait", 1, 4711).status == 2


# --- artifacts ----------------------------------------------------------------------------------


def left(run: StepContext) -> StepResult:
    (run.folder / "vmlinux").write_bytes(b"kernel" * 1000)
    (run.folder / "console-0.log").write_text("a")
    (run.folder / "console-1.log").write_text("b")
    return built()


@pytest.mark.thorough
def test_a_jobs_artifacts_are_fetched_by_name_or_all(
    kgym: Kgym, idle: Platform, fake_build: BuildSpec, data: Path, tmp_path: Path
) -> None:
    request = JobRequest(steps=[fake_build, fake_build]).model_dump_json()
    with working(idle, data, {StepKind.BUILD: left}):
        kgym("job", "submit", "-", stdin=request)
        assert kgym("--server", idle.url, "job", "wait", 1).status == 0
    to = tmp_path / "here"
    done = kgym("job", "fetch", 1, "vmlinux", "--step", 1, "--output", to)
    assert done.out.splitlines() == [str(to / "1-build" / "vmlinux")]
    assert (to / "1-build" / "vmlinux").read_bytes() == b"kernel" * 1000
    logs = kgym("job", "fetch", 1, "console-*.log", "-o", to, "--json").json
    assert [(fetched["step"], fetched["name"]) for fetched in logs] == [
        (0, "console-0.log"),
        (0, "console-1.log"),
        (1, "console-0.log"),
        (1, "console-1.log"),
    ]
    assert Path(logs[3]["path"]).read_text() == "b"
    (to / "1-build" / "vmlinux").write_bytes(b"spoilt")
    everything = kgym("job", "fetch", 1, "-o", to)
    assert {f"{number}-build/vmlinux" for number in (0, 1)} <= {
        str(Path(line).relative_to(to)) for line in everything.out.splitlines()
    }
    assert (to / "1-build" / "vmlinux").read_bytes() == b"kernel" * 1000
    nothing = kgym("job", "fetch", 1, "dump*", "-o", to)
    assert (nothing.status, "console-0.log" in nothing.err) == (2, True)
    assert kgym("job", "fetch", 1, "--step", 2, "-o", to).status == 2


def parts(run: StepContext) -> StepResult:
    for name in ("initrd-0.cpio", "reproducer.c", "reproducer", "about.json", "reproduce.sh"):
        (run.folder / name).write_text(name)
    return ran()


def kernel(run: StepContext) -> StepResult:
    for name in ("bzImage", "vmlinux", "config", "System.map"):
        (run.folder / name).write_text(name)
    return built()


def test_a_bundle_is_packed_when_it_is_fetched(
    kgym: Kgym, idle: Platform, fake_build: BuildSpec, data: Path, tmp_path: Path
) -> None:
    reproduce = ReproduceSpec(build=StepRef(step=0), reproducer=Reproducer(text="x"))
    elsewhere = reproduce.model_copy(update={"build": StepRef(job=1, step=0)})
    with working(idle, data, {StepKind.BUILD: kernel, StepKind.REPRODUCE: parts}):
        for number, steps in enumerate(([fake_build, reproduce], [elsewhere]), 1):
            kgym("job", "submit", "-", stdin=JobRequest(steps=steps).model_dump_json())
            assert kgym("--server", idle.url, "job", "wait", number).status in (0, 1)
    sums = set()
    for job, step in ((1, 1), (2, 0), (1, 1)):
        got = kgym("job", "fetch", job, "bundle.tar.gz", "-o", tmp_path / str(job), "--json").json
        (fetched,) = got
        assert (fetched["step"], fetched["name"]) == (step, "bundle.tar.gz")
        assert hashlib.sha256(Path(fetched["path"]).read_bytes()).hexdigest() == fetched["sha256"]
        assert [path.name for path in (tmp_path / str(job)).iterdir()] == [f"{step}-reproduce"]
        sums.add(fetched["sha256"])
        with tarfile.open(fetched["path"]) as archive:
            assert {member.name: member.mode for member in archive} == {
                **{f"bundle/{name}": 0o644 for name in ("kernel", "vmlinux", "config")},
                **{f"bundle/{name}": 0o644 for name in ("initrd-0.cpio", "reproducer.c")},
                "bundle/about.json": 0o644,
                **{f"bundle/{name}": 0o755 for name in ("reproducer", "reproduce.sh")},
            }
            content = archive.extractfile("bundle/kernel")
            assert content is not None
            assert content.read() == b"bzImage"
    assert len(sums) == 1
    some = kgym("job", "fetch", 1, "bundle.tar.gz", "config", "-o", tmp_path / "some")
    assert some.out.split() == [
        str(tmp_path / "some" / name) for name in ("0-build/config", "1-reproduce/bundle.tar.gz")
    ]
    assert kgym("job", "fetch", 1, "bundle.tar.gz", "--step", 0, "-o", tmp_path).status == 2

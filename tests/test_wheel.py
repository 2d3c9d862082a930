"""The built package, installed: what each extra brings is what is imported, and it builds a kernel.

The environments see the packages of this one, but neither the checkout nor its editable install.
"""

import importlib.metadata as metadata
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from kgym.api.jobs import JobRequest
from kgym.api.steps import BuildSpec
from kgym_monitor.assets import PACKAGED_FILES
from tests.conftest import ROOT, turns

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

# What has to be importable with each.
EXTRAS = {
    "": ("kgym.api", "kgym.bugs", "kgym.client", "kgym.crash", "kgym_cli.commands"),
    "scheduler": (
        "kgym_scheduler",
        "kgym.web",
        "kgym_cli.commands.scheduler",
        "kgym_cli.platforms.composition",
    ),
    "worker": ("kgym.host", "kgym.worker", "kgym_builder", "kgym_vmmanager"),
    "tracer": ("kgym.trace", "kgym_tracer"),
    "agent": ("kgym_crashfixer", "kgym.web"),
    "monitor": ("kgym_monitor",),
    "bench": ("kgym.bench", "kgym_benchmark"),
    "gcp": ("kgym.transport.gcs", "kgym_hosts"),
    "all": (
        "kgym",
        "kgym_benchmark",
        "kgym_builder",
        "kgym_cli",
        "kgym_crashfixer",
        "kgym_hosts",
        "kgym_monitor",
        "kgym_scheduler",
        "kgym_tracer",
        "kgym_vmmanager",
    ),
}
IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[1:]:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{name}."):
        if found.name.rpartition(".")[2] not in {"__main__", "env", "dump_reader"}:
            importlib.import_module(found.name)
"""


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def build_wheel(source: Path, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=120)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Installed:
    """The wheel in an environment of its own, with the packages that some extras bring."""

    def __init__(self, folder: Path, wheel: Path, packages: Path) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        (self.site,) = folder.glob("lib/python3*/site-packages")
        self.python = folder / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", self.python, "install", "--no-deps"]
        subprocess.run([*pip, "--no-index", "-q", wheel], check=True, timeout=120)
        (self.site / "packages.pth").write_text(f"{packages}\n")
        self.folder = folder

    def run(self, *argv: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
        """Run a program of it, away from the checkout; return what came of it."""
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        return subprocess.run(
            [self.folder / "bin" / argv[0], *argv[1:]],
            cwd=home,
            env={**kept, "HOME": str(home), "KGYM_DATA": str(home / "data"), **env},
            check=False,
            capture_output=True,
            text=True,
            timeout=240,
        )


def brought(wheel: Path, extra: str) -> set[str]:
    """Return the names of what the wheel asks for with this extra, and what that asks for."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = (name for name in file.namelist() if name.endswith("/METADATA"))
        text = file.read(name).decode()
    wanted = [
        (Requirement(line), extra) for line in re.findall("^Requires-Dist: (.*)$", text, re.M)
    ]
    known: set[str] = set()
    while wanted:
        requirement, by = wanted.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": by}):
            continue
        for own in {"", *requirement.extras}:
            if (key := f"{requirement.name}[{own}]") not in known:
                known.add(key)
                requires = metadata.requires(requirement.name) or []
                wanted += [(Requirement(line), own) for line in requires]
    return {key.partition("[")[0] for key in known}


def link(names: set[str], folder: Path) -> Path:
    """Make a folder with the files of these packages, and no others'."""
    folder.mkdir()
    for name in names:
        files = metadata.files(name)
        assert files is not None
        for top in {Path(file).parts[0] for file in files} - {"..", "__pycache__"}:
            there = folder / top
            if not there.exists():
                there.symlink_to(metadata.distribution(name).locate_file(top))
    return folder


@pytest.fixture(scope="module")
def base(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("base")
    return Installed(folder / "venv", wheel, link(brought(wheel, ""), folder / "packages"))


@pytest.mark.parametrize("extra", turns(EXTRAS, 3))
def test_an_extra_brings_what_its_part_imports(extra: str, wheel: Path, tmp_path: Path) -> None:
    packages = link(brought(wheel, extra), tmp_path / "packages")
    installed = Installed(tmp_path / "venv", wheel, packages)
    done = installed.run("python", "-c", IMPORT_ALL, *EXTRAS[extra])
    assert done.returncode == 0, done.stderr


def test_without_extras_bugs_are_listed_and_shown(base: Installed) -> None:
    listed = json.loads(base.run("kgym", "bug", "list", "--json").stdout)
    names = {path.name for path in (ROOT / "configs" / "bugs").iterdir()}
    assert {bug["name"] for bug in listed} == names
    shown = base.run("kgym", "bug", "show", "watch-queue-filter", "--json")
    assert json.loads(shown.stdout)["job"]["steps"], shown.stderr


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (("scheduler",), "scheduler"),
        (("token", "list"), "scheduler"),
        (("worker", "--server", "http://127.0.0.1:1"), "worker,tracer"),
        (("worker", "--server", "http://127.0.0.1:1", "--kinds", "check"), "worker"),
        (("up",), "scheduler,worker,tracer"),
        (("job", "list"), "scheduler,worker,tracer"),
        (("trace", "show", "trace.npz"), "tracer"),
    ],
)
def test_what_an_extra_lacks_is_one_line(
    base: Installed, words: tuple[str, ...], extra: str
) -> None:
    (base.folder / "home").mkdir(exist_ok=True)
    (base.folder / "home" / "trace.npz").write_bytes(b"")
    done = base.run("kgym", *words)
    assert done.returncode == 2
    assert re.fullmatch(r"kgym: this needs [\w-]+, which is not installed\. .*\n", done.stderr)
    assert f"'.[{extra}]'" in done.stderr


def test_the_pages_have_their_files_and_no_others_of_packages(wheel: Path) -> None:
    folder = "kgym_monitor/packages/"
    with zipfile.ZipFile(wheel) as file:
        names = {name.removeprefix(folder) for name in file.namelist() if name.startswith(folder)}
        for name in names:
            assert file.read(folder + name) == (ROOT / "node_modules" / name).read_bytes()
        assert "kgym_monitor/templates/base.html" in file.namelist()
        assert "kgym_monitor/static/page.js" in file.namelist()
    assert names == set(PACKAGED_FILES)


def test_a_fresh_clone_installs_without_the_web_pages(tmp_path: Path) -> None:
    """`pip install git+URL` builds from one, where no npm package is."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", ROOT, clone], check=True, timeout=60)
    wheel = build_wheel(clone, tmp_path / "wheel")
    packages = link(brought(wheel, "monitor"), tmp_path / "packages")
    installed = Installed(tmp_path / "venv", wheel, packages)
    assert installed.run("kgym", "bug", "list").returncode == 0
    refused = installed.run("kgym", "monitor", KGYM_SERVER="http://127.0.0.1:1")
    assert refused.returncode != 0
    assert "npm ci --ignore-scripts" in refused.stderr, refused.stderr


def installed_files(site: Path) -> Iterator[Path]:
    for package in site.glob("kgym*"):
        yield from package.rglob("*")


def test_the_installed_package_builds_a_kernel(
    wheel: Path, fake_build: BuildSpec, tmp_path: Path
) -> None:
    (here,) = (Path(path) for path in sys.path if Path(path, "pydantic").is_dir())
    installed = Installed(tmp_path / "venv", wheel, here)
    assert not [path for path in installed_files(installed.site) if path.is_symlink()]
    where = installed.run("python", "-c", "import kgym, kgym_cli; print(kgym.__file__)")
    assert Path(where.stdout).is_relative_to(installed.site)
    for words in (("monitor", "shoot", "pictures"), ("demo", "--provider", "gce", "--emulated")):
        refused = installed.run("kgym", *words)
        assert (refused.returncode, refused.stderr.count("Traceback")) == (2, 0), refused.stderr
        assert "needs a checkout" in refused.stderr
    (tmp_path / "job.json").write_text(JobRequest(steps=[fake_build]).model_dump_json())
    done = installed.run("kgym", "job", "submit", tmp_path / "job.json", "--wait", "--json")
    assert done.returncode == 0, done.stderr
    job = json.loads(done.stdout.splitlines()[-1])
    assert [step["state"] for step in job["steps"]] == ["succeeded"]

"""`kgym cache`: compiled kernels, made before they are needed, shown, and dropped."""

import time
from pathlib import Path

import pytest

from kgym.api.steps import TarballSource
from kgym_cli.platforms.embedded_platform import Platform
from tests.bundles import small_bundle, tarball
from tests.cli.conftest import Kgym

pytestmark = pytest.mark.thorough


@pytest.fixture
def bundle(fake_source: TarballSource, tmp_path: Path) -> Path:
    return written(tmp_path / "bug", fake_source)


def written(folder: Path, source: TarballSource, more: str = "") -> Path:
    small_bundle(folder, f"{tarball(source)}\nmake_seconds = 600")
    (folder / "fragment").write_text(f"CONFIG_BASE=y\n{more}")
    return folder


@pytest.mark.usefixtures("platform")
def test_an_entry_is_made_listed_shown_and_dropped(
    kgym: Kgym, bundle: Path, data: Path, fake_source: TarballSource
) -> None:
    other = written(bundle.with_name("other"), fake_source, "CONFIG_EXTRA=y\n")
    made = kgym("cache", "warm", bundle, "--json")
    assert made.status == 0, made.err
    (first,) = made.json
    assert (first["state"], first["cached"], first["failure"]) == ("succeeded", False, None)
    (again, near) = kgym("cache", "warm", bundle, other, "--json").json
    assert (again["entry"], again["cached"], near["cached"]) == (first["entry"], True, False)

    listed = kgym("cache", "list", "--json").json
    making = {entry["name"]: entry["making"] for entry in listed["entries"]}
    assert making[first["entry"]]["base"] is None
    assert making[near["entry"]]["base"] == first["entry"]
    assert making[near["entry"]]["symbols_changed"] == 1
    assert first["entry"] in kgym("cache", "list", "--text", "6.1").out
    shown = kgym("cache", "show", near["entry"]).out
    assert f"from {first['entry'][:12]}: 0 files, 1 symbols" in shown
    assert "1 objects in" in shown

    gone = kgym("cache", "drop", near["entry"], "--json")
    assert gone.status == 0, gone.out
    assert gone.json["bytes"] > 1000
    end = time.monotonic() + 100
    while (data / "cache" / "suitecache" / near["entry"]).exists():  # until it claims
        assert time.monotonic() < end
        time.sleep(0.2)
    missing = kgym("cache", "drop", near["entry"], "--json")
    while missing.status == 0:  # until the worker has told
        assert time.monotonic() < end
        missing = kgym("cache", "drop", near["entry"], "--json")
    assert (missing.status, missing.json["reason"]) == (2, "entry_not_found")
    (anew,) = kgym("cache", "warm", other, "--json").json
    assert (anew["entry"], anew["cached"]) == (near["entry"], False)


def test_a_kernel_that_does_not_build_is_told(kgym: Kgym, bundle: Path, platform: Platform) -> None:
    del platform
    (bundle / "fragment").write_text("CONFIG_BASE\n")
    done = kgym("cache", "warm", bundle, "--json")
    assert (done.status, done.json[0]["failure"]["reason"]) == (2, "config_rejected")
    assert done.json[0]["entry"] is None


@pytest.mark.usefixtures("idle")
def test_builds_are_submitted_without_waiting(kgym: Kgym, bundle: Path) -> None:
    (left,) = kgym("cache", "warm", bundle, "--make-jobs", 1, "--no-wait", "--json").json
    assert (left["state"], left["entry"]) == ("queued", None)
    shown = kgym("job", "show", left["job"], "--json").json
    spec = shown["steps"][0]["spec"]
    assert (spec["jobs"], spec["make_seconds"], spec["patches"]) == (1, 600, [])


def test_a_name_of_nothing_is_refused(kgym: Kgym) -> None:
    done = kgym("cache", "warm", "no-such-bug", "--json")
    assert (done.status, done.json["reason"]) == (2, "no_such_bug")

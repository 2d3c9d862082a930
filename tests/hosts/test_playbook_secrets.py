"""Secrets that the playbook reads: of files, and of a server that stands for Secret Manager."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.google.cloud_project.server import CloudProject


def read(name: object) -> str:
    """Return the secret, as Ansible asks for it."""
    path = ROOT / "deploy" / "lookup_plugins" / "kgym_secret.py"
    spec = importlib.util.spec_from_file_location("kgym_secret", path)
    assert spec is not None
    assert spec.loader is not None
    plugin: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(plugin)
    (secret,) = plugin.LookupModule().run([str(name)])
    return str(secret)


def test_a_file_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.touch(0o600)
    secret.write_text(" kgym_1_x \n")
    assert read(secret) == "kgym_1_x"


@pytest.mark.attack
@pytest.mark.parametrize(
    ("mode", "text", "message"),
    [
        (0o640, "x", "others can read this secret"),
        (0o600, "x\nKGYM_OWNER_TOKEN=y", "one line of text"),  # would be a variable of its own
        (0o600, "x" * 70_000, "one line of text"),
        (0o600, "", "one line of text"),
    ],
)
def test_what_is_no_secret_is_refused(tmp_path: Path, mode: int, text: str, message: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text(text)
    secret.chmod(mode)
    with pytest.raises(Exception, match=message):
        read(secret)


def test_secret_manager_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with CloudProject(tmp_path) as cloud:
        monkeypatch.setenv("SECRET_MANAGER_EMULATOR_HOST", cloud.url)
        cloud.secrets["farm-owner"] = "kgym_1_x\n"
        assert read("projects/kgym-test/secrets/farm-owner") == "kgym_1_x"
        with pytest.raises(Exception, match=r"secrets/other.*404"):
            read("projects/kgym-test/secrets/other")
    with pytest.raises(Exception, match=r"secrets/farm-owner: .*refused"):
        read("projects/kgym-test/secrets/farm-owner")

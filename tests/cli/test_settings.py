"""Settings: the command line before the environment before the default, read in one place."""

import re
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kgym.api.worker_calls import LEASE_SECONDS
from kgym.errors import InfrastructureError, UserError
from kgym_cli.program import cli
from kgym_cli.settings import ALL, Settings, in_use, settings
from kgym_scheduler.api.caller_limits import CallerLimits
from tests.cli.conftest import Kgym
from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "docs"))

import reference

from tests.tables import rows

# The files that look at the environment besides, and why.
OTHERS = dict(rows(__file__, "environment_readers.tsv"))


def test_the_option_goes_before_the_variable_and_that_before_the_default() -> None:
    assert Settings({}).port == 8420
    assert Settings({"KGYM_PORT": "1"}).port == 1
    assert Settings({"KGYM_PORT": "1"}, {"port": 2}).port == 2
    assert Settings({"KGYM_PORT": ""}).port == 8420  # as Compose writes what is not set


def test_defaults_follow_from_others(tmp_path: Path) -> None:
    chosen = Settings({"KGYM_STORAGE": "/elsewhere"}, {"data": tmp_path})
    assert chosen.cache == tmp_path / "cache"
    assert chosen.folder == tmp_path / "work" / "workers"
    assert chosen.storage == "/elsewhere"


@pytest.mark.parametrize(("variable", "value", "message"), rows(__file__, "bad_values.tsv"))
def test_a_bad_value_is_named_by_whoever_needs_it(variable: str, value: str, message: str) -> None:
    chosen = Settings({variable: value})
    assert chosen.host == "127.0.0.1"
    with pytest.raises(UserError, match=f"{variable}: .*{re.escape(message)}") as refused:
        getattr(chosen, variable.removeprefix("KGYM_").lower())
    assert refused.value.reason == "bad_setting"


def test_a_bad_variable_ends_the_command_that_uses_it_with_one_line(
    kgym: Kgym, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KGYM_PORT", "many")
    assert kgym("bug", "list").status == 0
    refused = kgym("scheduler")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "KGYM_PORT: 'many' is not a valid integer" in refused.err


@pytest.mark.parametrize("named", ["nonsense", "127.0.0.1:8420", "http://h:0", "http://[::1"])
def test_a_server_that_is_no_address_is_bad_input(kgym: Kgym, named: str) -> None:
    refused = kgym("job", "list", "--server", named, "--json")
    assert (refused.status, refused.json["reason"]) == (2, "bad_usage")
    assert f"'{named}' is not a URL such as http://127.0.0.1:8420" in refused.err


def test_an_unknown_kind_of_step_is_named(kgym: Kgym) -> None:
    refused = kgym("worker", "--server", "http://127.0.0.1:1", "--kinds", "build,bake")
    assert refused.status == 2
    assert "'bake'" in refused.err
    assert "there are: build" in refused.err


def test_settings_of_a_command_end_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KGYM_HOST", "192.0.2.1")
    with in_use(Settings({})):
        assert settings().host == "127.0.0.1"
    assert settings().host == "192.0.2.1"


def test_each_call_in_one_process_goes_by_its_own_options() -> None:
    for server in ("http://127.0.0.1:1", "http://127.0.0.1:2"):
        for words in (["--server", server, "job", "list"], ["job", "list", "--server", server]):
            ran = CliRunner().invoke(cli, words)
            assert isinstance(ran.exception, InfrastructureError)
            assert f"no scheduler answers at {server}" in ran.exception.message
    assert settings().server is None


def test_defaults_are_those_of_the_parts() -> None:
    assert Settings({}).lease == LEASE_SECONDS
    limits = CallerLimits()
    chosen = Settings({})
    assert chosen.requests_per_second == limits.requests_per_second == limits.burst / 2
    assert chosen.streams == limits.streams
    assert chosen.unfinished_jobs == limits.unfinished_jobs
    assert chosen.bytes_per_second == limits.bytes_per_second
    assert 4096 * chosen.bytes_per_second == limits.bytes_at_once


@pytest.mark.parametrize("command", ["scheduler", "worker", "up", "gc"])
def test_help_names_each_with_its_variable_and_default(kgym: Kgym, command: str) -> None:
    shown = " ".join(kgym(command, "--help").out.split())
    own = [setting for setting in ALL if command in setting.commands]
    assert own
    for setting in own:
        assert setting.option in shown
        assert setting.variable in shown
        assert setting.default_shown in shown


def test_the_page_has_a_table_of_all() -> None:
    table = "\n".join(reference._settings())
    assert all(f"| `{setting.variable}` |" in table for setting in ALL)
    assert "| `KGYM_PORT` | `kgym scheduler --port`, `kgym up --port` | 8420 |" in table


@pytest.mark.thorough
def test_nothing_else_reads_the_environment() -> None:
    reads = re.compile(r"\b(?:environb?|getenv)\b|\benvvar=")  # no syntax tree: see test_pages.py
    variables = {
        str(path.relative_to(root))
        for root in (ROOT / "common", ROOT / "services")
        for path in root.rglob("*.py")
        if reads.search(path.read_text())
    }
    assert variables == set(OTHERS)


def test_every_variable_that_is_read_is_a_setting() -> None:
    known = {setting.variable for setting in ALL}
    for root in (ROOT / "common", ROOT / "services"):
        for path in root.rglob("*.py"):
            assert set(re.findall(r"\bKGYM_[A-Z_]*[A-Z]", path.read_text())) <= known, path

"""`kgym token` and `kgym gc`, as processes."""

import json
from pathlib import Path

import pytest

from kgym.api.jobs import JobRequest
from kgym.client import Client
from kgym_cli.platforms.embedded_platform import Platform
from kgym_cli.settings import Size
from tests.cli.conftest import Kgym

pytestmark = pytest.mark.thorough


@pytest.mark.usefixtures("idle")
def test_a_token_is_printed_once_listed_and_revoked(kgym: Kgym) -> None:
    made = kgym("token", "create", "alice", "--scope", "submit", "--scope", "worker", "--json")
    assert made.json["token"].startswith("kgym_1_")
    [listed] = kgym("token", "list", "--json").json
    assert (listed["name"], listed["scopes"]) == ("alice", ["submit", "worker"])
    assert listed["revoked_at"] is None
    assert made.json["token"] not in kgym("token", "list").out
    assert kgym("token", "create", "alice", "--scope", "read").status == 2
    alone = kgym("token", "create", "bob", "--scope", "read").out
    assert (alone[:7], len(alone.split())) == ("kgym_2_", 1)
    assert kgym("token", "revoke", "alice").status == 0
    assert kgym("token", "revoke", "alice").status == 2
    assert kgym("token", "list", "--json").json[0]["revoked_at"] is not None


def test_commands_show_the_token_they_are_given(
    kgym: Kgym, platform: Platform, build_job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = kgym("token", "create", "alice", "--scope", "submit").out.strip()
    monkeypatch.setattr("kgym_scheduler.database.tokens.CACHE_SECONDS", 0.0)
    refused = kgym("--server", platform.url, "job", "list")
    assert refused.status == 2
    assert "a token is needed" in refused.err
    submitted = kgym("--token", token, "job", "submit", "-", "--json", stdin=build_job)
    assert submitted.json["submitter"] == "alice"
    monkeypatch.setenv("KGYM_TOKEN", token)
    [listed] = kgym("job", "list", "--json").json
    assert listed["submitter"] == "alice"


def test_whoever_makes_a_token_is_not_locked_out(
    kgym: Kgym, platform: Platform, build_job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kgym("token", "create", "lab", "--scope", "read")
    monkeypatch.setattr("kgym_scheduler.database.tokens.CACHE_SECONDS", 0.0)
    submitted = kgym("job", "submit", "-", "--json", stdin=build_job)
    assert (submitted.status, submitted.json["submitter"]) == (0, "local"), submitted.err
    assert kgym("job", "abort", submitted.json["id"]).status == 0
    assert kgym("--server", platform.url, "job", "list").status == 2
    platform.stop()  # and one that commands start lets its user in, too
    assert kgym("job", "show", submitted.json["id"]).status == 0


def test_there_is_a_way_back_from_the_first_token(
    kgym: Kgym, platform: Platform, monkeypatch: pytest.MonkeyPatch
) -> None:
    kgym("token", "create", "lab", "--scope", "read")
    kgym("token", "revoke", "lab")
    monkeypatch.setattr("kgym_scheduler.database.tokens.CACHE_SECONDS", 0.0)
    assert kgym("--server", platform.url, "job", "list").status == 2
    assert kgym("token", "forget", "--json").json == {"forgotten": 1}
    assert kgym("--server", platform.url, "job", "list").status == 0
    monkeypatch.setenv("KGYM_DATABASE", "postgresql+asyncpg://u:p@127.0.0.1:1/none")
    assert kgym("token", "forget").status == 2


def test_gc_shows_then_does(kgym: Kgym, platform: Platform, build_job: str, data: Path) -> None:
    with Client(platform.url) as client:
        job = client.wait(client.submit(JobRequest.model_validate_json(build_job)).id)
        assert job.steps[0].artifacts
    platform.stop()
    options = ("--artifact-budget", "1K", "--cache-budget", "0", "--json")
    shown = kgym("gc", *options).json
    assert [(artifact["job"], artifact["why"]) for artifact in shown["artifacts"]] == [
        (1, "budget")
    ]
    assert len(shown["caches"]) == 2  # a source and a tree
    assert not shown["applied"]
    done = kgym("gc", "--apply", *options).json
    assert done["applied"]
    assert [artifact["bytes"] for artifact in done["artifacts"]] == [
        artifact["bytes"] for artifact in shown["artifacts"]
    ]
    assert not list((data / "artifacts").rglob("vmlinux"))
    nothing = kgym("gc", *options).json
    assert nothing["artifacts"] == nothing["caches"] == []


def test_gc_of_a_host_with_caches_only_needs_no_database(kgym: Kgym, data: Path) -> None:
    assert kgym("gc", "--only", "caches", "--json").json == {
        "applied": False,
        "artifacts": None,
        "entries": None,
        "logs": None,
        "caches": [],
    }
    assert not (data / "kgym.db").exists()


@pytest.mark.parametrize("size", ["lots", "-1", "inf", "5 parsecs", "1e3G", ""])
def test_gc_refuses_a_size_that_is_none(kgym: Kgym, size: str) -> None:
    refused = kgym("gc", "--cache-budget", size)
    assert refused.status == 2
    assert f"{size!r} is not a size such as 500MB" in refused.err


@pytest.mark.parametrize(
    ("size", "bytes_"), [("0", 0), ("1000", 1000), ("2kB", 2000), ("1.5KiB", 1536), ("1G", 10**9)]
)
def test_sizes_are_in_the_units_of_the_si_or_in_powers_of_two(size: str, bytes_: int) -> None:
    assert Size()(size) == bytes_


@pytest.mark.usefixtures("idle")
def test_many_jobs_are_submitted_and_aborted_together(
    kgym: Kgym, build_job: str, tmp_path: Path
) -> None:
    files = [tmp_path / f"{number}.json" for number in range(4)]
    for number, file in enumerate(files):
        tags = ["night"] if number == 3 else []
        file.write_text(json.dumps({**json.loads(build_job), "tags": tags}))
    done = kgym("job", "submit", *files, "--key", "mine", "--json").json
    assert (len(done["jobs"]), done["created"]) == (4, 4)
    assert kgym("job", "submit", *files, "--wait").status == 2
    by_tag = kgym("job", "abort", "--tag", "night", "--json").json
    assert by_tag["aborted"] == done["jobs"][3:]
    by_number = kgym("job", "abort", *done["jobs"], 4711, "--json").json
    assert by_number["aborted"] == done["jobs"][:3]
    assert (by_number["finished"], by_number["missing"]) == (done["jobs"][3:], [4711])
    assert kgym("job", "abort").status == 2

"""Two hosts without a folder in common: their files are in a bucket."""

import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from kgym.api.jobs import JobRequest, JobView
from kgym.api.states import State
from kgym.api.steps import BuildSpec, Edit, Patch
from kgym.client import Client
from kgym_cli.platforms.servers import Program, free_port
from tests.cli.conftest import Kgym
from tests.google.cloud_storage.server import CloudStorage

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STORAGE = "gs://kgym-test/trials/artifacts"
EDIT = Edit(
    file="kernel/watch_queue.c", original="type >= WATCH_TYPE__NR", replacement="type >= 100"
)


@pytest.fixture
def cloud(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudStorage]:
    with CloudStorage(tmp_path / "cloud") as server:
        server.buckets.create("kgym-test")
        server.account("kgym", tmp_path / "key.json")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        monkeypatch.setenv("KGYM_STORAGE", STORAGE)
        yield server


@contextmanager
def running(name: str, host: Path, *words: str) -> Iterator[Program]:
    """Run a command of a host, with its own data folder, until it is stopped."""
    host.mkdir(exist_ok=True)
    program = Program(name, [sys.executable, "-m", "kgym_cli", *words], host / f"{name}.log")
    program.env = {"KGYM_DATA": str(host)}
    program.spawn()
    try:
        yield program
    finally:
        program.stop()


def built(url: str, client: Client, spec: BuildSpec, host: Path) -> JobView:
    """Let a worker of this host do a job."""
    with running("worker", host, "worker", "--server", url, "--kinds", "build"):
        view = client.wait(client.submit(JobRequest(steps=[spec])).id)
    assert view.state is State.SUCCEEDED, client.log(view.id)
    return view


@pytest.mark.exhaustive
def test_what_one_host_has_made_another_goes_on_with(
    cloud: CloudStorage, kgym: Kgym, fake_build: BuildSpec, tmp_path: Path, data: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    patched = fake_build.model_copy(update={"patches": [Patch(edits=[EDIT])]})
    with ExitStack() as stack:
        scheduler = stack.enter_context(
            running("scheduler", data, "scheduler", "--port", str(port))
        )
        wait_for(url, scheduler)
        client = stack.enter_context(Client(url))
        built(url, client, fake_build, tmp_path / "one")
        names = {stored.name for stored in cloud.buckets.page("kgym-test").objects}
        assert any(re.search("/suitecache/.*/image.squashfs$", name) for name in names)
        assert all(name.startswith("trials/artifacts/") for name in names)
        second = built(url, client, patched, tmp_path / "two")
        assert "fetched the entry from storage" in client.log(second.id)
        for name in ("bzImage", "build.log"):  # one is kept as a difference, one as it is
            client.download(second.id, 0, name, tmp_path / name)
        used = kgym("--server", url, "du", "--json").json["storage"]
        assert {used_kind["kind"] for used_kind in used["kinds"]} >= {"artifacts", "entries"}
        gone = kgym("gc", "--only", "entries", "--entry-age", "0", "--apply", "--json")
        assert gone.status == 0, gone.err
        assert gone.json["entries"]
        left = {stored.name for stored in cloud.buckets.page("kgym-test").objects}
        assert not [name for name in left if "/suitecache/" in name]
    assert any("X-Goog-Signature" in request for request in cloud.requests)
    assert not [path for path in tmp_path.rglob("artifacts") if path.is_dir()]


def wait_for(url: str, server: Program) -> None:
    for _ in range(600):
        assert server.pid is not None, server.tail()
        try:
            httpx.get(f"{url}/healthz", trust_env=False).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    raise AssertionError(server.tail())


@pytest.mark.parametrize(
    "url", ["gs://", "gs://UPPER/x", "gs://bucket//x", "gs://bucket/../x", "s3://bucket/x"]
)
def test_a_storage_that_cannot_be_meant_is_refused(kgym: Kgym, url: str) -> None:
    answer = kgym("scheduler", "--port", "0", "--storage", url)
    assert answer.status == 2
    assert "gs://BUCKET/PREFIX" in answer.err

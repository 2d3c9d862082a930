"""A job that waits: what its steps will do, and why they do not begin."""

import time
from collections.abc import Iterator

import pytest

from kgym.api.jobs import JobRequest
from kgym.client import Client
from kgym_cli.platforms.embedded_platform import Platform
from kgym_monitor.pages import plan_words
from tests.cli.worked import working
from tests.demo.checked_patches import request
from tests.demo.monitored import monitored
from tests.demo.showcase import Showcase, trial
from tests.monitor.browsing import Visitor, words
from tests.monitor.conftest import PATIENCE, Site


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Client, Visitor]]:
    """A platform without a worker."""
    with (
        Platform(tmp_path_factory.mktemp("idle"), work=False) as platform,
        monitored(platform.url) as url,
        Client(platform.url) as client,
        Visitor(url) as visitor,
    ):
        yield client, visitor


@pytest.mark.thorough
def test_each_step_says_what_it_will_do(idle: tuple[Client, Visitor]) -> None:
    client, visitor = idle
    job = client.submit(trial())
    plans = [plan_words.plan(job, step) or "" for step in client.job(job.id).steps]
    assert plans[0].startswith("Builds the package linux-source-6.1 with gcc, ")
    assert "with the kernel of step 0 (Build)" in plans[1]
    assert "Looks for “KASAN: slab-out-of-bounds" in plans[1]
    assert "Reviews 1 patch on trial." in plans[2]
    assert "Compares with step 1 (Reproduce)." in plans[3]
    page = words(visitor.get(f"/jobs/{job.id}"))
    for sentence in plans:
        assert " ".join(sentence.split())[:80] in page


@pytest.mark.thorough
def test_a_check_and_a_source_say_what_they_will_do(idle: tuple[Client, Visitor]) -> None:
    client, _ = idle
    job = client.submit(request())
    [step] = client.job(job.id).steps
    description = plan_words.plan(job.model_copy(update={"steps": [step]}), step)
    assert description is not None
    assert description.startswith(
        "Checks whether 3 patches: return early, edits, elsewhere apply to"
    )
    assert description.endswith("compile on linux.tar.xz with gcc, defconfig, each alone.")


@pytest.mark.thorough
def test_a_queued_job_says_why_it_waits(idle: tuple[Client, Visitor]) -> None:
    client, visitor = idle
    job = client.submit(JobRequest(steps=trial().steps[:1]))
    page = words(visitor.get(f"/jobs/{job.id}"))
    assert "Step 0 waits" in page
    assert "No worker runs build steps." in page


@pytest.mark.thorough
def test_the_place_in_the_queue_is_told_as_it_changes(site: Site) -> None:
    showcase = Showcase(lines=1)
    folder = site.data / "one"
    folder.mkdir()
    with (
        Platform(folder, work=False) as platform,
        working(platform, folder, showcase.answers),
        monitored(platform.url) as url,
        Client(platform.url) as client,
        Visitor(url) as visitor,
    ):
        slots = client.workers()[0].slots
        for _ in range(slots):
            client.submit(trial("HELD"))
        first = client.submit(JobRequest(steps=trial("HELD").steps[:1], tags=["first:1"]))
        last = client.submit(JobRequest(steps=trial("HELD").steps[:1]))

        def polled(until: str) -> str:
            end = time.monotonic() + PATIENCE / 1000
            while until not in (text := visitor.get(f"/jobs/{last.id}?poll=yes").text):
                assert time.monotonic() < end, text
                time.sleep(0.2)
            return text

        text = polled("step of its kind is ahead")
        assert f"{slots} of {slots} slots in use" in text
        client.abort(first.id)
        polled("next in its queue")
        client.drain(client.workers()[0].id)
        assert "1 draining, which take no more steps" in words(visitor.get(f"/jobs/{last.id}"))
        showcase.let_go.set()

"""kGymSuite's surface, as it is documented: jobs are submitted, followed, tagged and found."""

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgym.api import key_value_tags as tags
from kgym.api import syz_program
from kgym.api.steps import Failure, InstanceOutcome, InstanceResult, Verdict
from kgym.api.worker_calls import AttemptEnding
from kgym.errors import UserError
from kgym_scheduler.scheduler import Scheduler
from tests.results import ran
from tests.scheduler.api.test_app import problem
from tests.scheduler.parts import BUILT, end, take
from tests.tables import json_rows, rows

pytestmark = pytest.mark.anyio

SOURCE = {
    "gitUrl": "https://git.example.org/linux.git",
    "commitId": "v6.1",
    "kConfig": "CONFIG_X86=y\n",
    "arch": "amd64",
    "compiler": "gcc",
    "linker": "ld",
}
BUILD = {"workerType": "kbuilder", "kernelSource": SOURCE, "userspaceImage": "buildroot.raw"}
RUN = {
    "workerType": "kvmmanager",
    "reproducer": {"reproducerType": "c", "reproducerText": "int main;", "nInstance": 2},
    "image": 0,
    "machineType": "qemu:2-4096",
}


async def new(http: httpx.AsyncClient, *stages: Any, **tags: str) -> str:
    answer = await http.post("/newJob", json={"jobWorkers": list(stages), "tags": tags})
    assert answer.status_code == 200, answer.text
    return str(answer.json())


def crash(number: int, title: str) -> InstanceResult:
    return InstanceResult(number=number, outcome=InstanceOutcome.CRASH, title=title)


async def test_a_job_is_two_steps_and_ends_in_their_words(
    http: httpx.AsyncClient, scheduler: Scheduler
) -> None:
    job_id = await new(http, BUILD | {"patch": "--- a/a\n+++ b/a\n"}, RUN, bugId="b 1")
    assert len(job_id) == 8
    job = await scheduler.job(int(job_id, 16))
    build, run = (step.spec for step in job.steps)
    assert (build.source.url, build.config.full) == (SOURCE["gitUrl"], SOURCE["kConfig"])  # type: ignore[union-attr]
    assert (run.instances, run.time, run.vm.cpus, run.vm.memory) == (2, 600, 2, 4096)  # type: ignore[union-attr]
    shown = (await http.get(f"/jobs/{job_id}")).json()
    assert (shown["status"], shown["currentWorker"]) == ("pending", 0)
    assert shown["tags"] == {"bugId": "b 1"}
    assert shown["jobWorkers"][0]["workerArgument"]["kernelSource"] == SOURCE
    await end(scheduler, BUILT)
    assert (await http.get(f"/jobs/{job_id}")).json()["status"] == "waiting"
    await end(scheduler, ran(Verdict.NO_CRASH, None))
    shown = (await http.get(f"/jobs/{job_id}")).json()
    assert (shown["status"], shown["currentWorker"]) == ("finished", 2)
    assert (shown["kGymEvaluation"], shown["kgym"]["outcome"]) == (
        *("notReproduced", "not_reproduced"),
    )
    assert shown["jobWorkers"][1]["workerResult"]["crashes"] == []
    [listed] = (await http.get("/jobs")).json()["page"]
    assert (listed["jobId"], listed["status"]) == (job_id, "finished")


async def test_crashes_are_told_by_their_titles(
    http: httpx.AsyncClient, scheduler: Scheduler
) -> None:
    job_id = await new(http, BUILD, RUN | {"image": -1})
    instances = [crash(0, "WARNING in f"), crash(1, "WARNING in f")]
    await end(scheduler, BUILT, ran(Verdict.SAME_CRASH, "WARNING in f", instances=instances))
    shown = (await http.get(f"/jobs/{job_id}")).json()
    assert shown["kGymEvaluation"] == "reproduced"
    [row] = shown["jobWorkers"][1]["workerResult"]["crashes"]
    assert (row["title"], row["crashType"], len(row["incidents"])) == ("WARNING in f", "crash", 2)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("outcome", "word"),
    [
        (InstanceOutcome.HUNG, "timeout"),
        (InstanceOutcome.BOOT_FAILED, "imageError"),
        (InstanceOutcome.ENDED_EARLY, "error"),
    ],
)
async def test_no_verdict_is_never_told_as_a_fix(
    http: httpx.AsyncClient, scheduler: Scheduler, outcome: InstanceOutcome, word: str
) -> None:
    job_id = await new(http, BUILD, RUN)
    instance = InstanceResult(number=0, outcome=outcome)
    await end(scheduler, BUILT, ran(Verdict.INCONCLUSIVE, None, instances=[instance]))
    shown = (await http.get(f"/jobs/{job_id}")).json()
    assert (shown["status"], shown["currentWorker"]) == ("aborted", 1)
    exception = shown["jobWorkers"][1]["workerResult"]["workerException"]
    assert exception["exceptionType"] == "inconclusive"
    assert shown["kGymEvaluation"] == word


@pytest.mark.thorough
async def test_what_does_not_compile_is_said(http: httpx.AsyncClient, scheduler: Scheduler) -> None:
    job_id = await new(http, BUILD, RUN)
    failure = Failure(cause="user", reason="does_not_compile", message="error: expected ';'")
    await end(scheduler, AttemptEnding(failure=failure))
    shown = (await http.get(f"/jobs/{job_id}")).json()
    assert (shown["status"], shown["currentWorker"]) == ("aborted", 0)
    exception = shown["jobWorkers"][0]["workerResult"]["jobException"]
    assert exception["code"] == "kbuilder.KernelBuildError"
    assert shown["kGymEvaluation"] == "compilationError"


async def test_a_kernel_of_an_earlier_job_is_built_on(
    http: httpx.AsyncClient, scheduler: Scheduler
) -> None:
    first = await new(http, BUILD)
    await end(scheduler, BUILT)
    result = (await http.get(f"/jobs/{first}")).json()["jobWorkers"][0]["workerResult"]
    second = await new(http, BUILD | {"kernelSource": result["kCache"], "patch": "--- a/b\n"}, RUN)
    spec = (await scheduler.job(int(second, 16))).steps[0].spec
    assert spec.source.url == SOURCE["gitUrl"]  # type: ignore[union-attr]
    assert [patch.diff for patch in spec.patches] == ["--- a/b\n"]  # type: ignore[union-attr]
    # A third job builds on the second's kernel, which has its patch; and adds nothing, or a patch.
    tree = {"kernelSource": result["kCache"] | {"key": f"jobs/{int(second, 16)}/steps/0/tree"}}
    for more in ([], ["--- a/c\n"]):
        third = await new(http, BUILD | tree | {"patch": "".join(more)}, RUN)
        spec = (await scheduler.job(int(third, 16))).steps[0].spec
        assert [patch.diff for patch in spec.patches] == ["--- a/b\n", *more]  # type: ignore[union-attr]
        assert spec.review == [patch.name for patch in spec.patches]  # type: ignore[union-attr]


PROGRAM = {"reproducerType": "log", "reproducerText": "getpid()\n"}


async def test_fields_without_effect_are_named_in_the_log(
    http: httpx.AsyncClient, scheduler: Scheduler
) -> None:
    more = {"syzkallerLatestTag": "v1", "nProc": 2, "threaded": False, "syzkallerCheckout": ""}
    given = RUN | {"reproducer": RUN["reproducer"] | more, "machineType": "e2-standard-4"}  # type: ignore[operator]
    used = RUN | {"reproducer": PROGRAM | more | {"syzkallerCheckout": "ab" * 20}}
    build = BUILD | {"kernelSource": SOURCE | {"linker": "ld.lld"}}
    job_id = await new(http, build, given, used)
    names = [
        *("0.kernelSource.linker", "0.userspaceImage", "1.reproducer.syzkallerLatestTag"),
        *("1.reproducer.nProc", "1.reproducer.threaded", "1.machineType"),
        "2.reproducer.syzkallerLatestTag",
    ]
    [line] = (await http.get(f"/jobs/{job_id}/log")).json()["page"]
    names = [f"jobWorkers.{name}" for name in names]
    assert sorted(line["content"].strip().partition(": ")[2].split(", ")) == sorted(names)
    second, third = (step.spec for step in (await scheduler.job(int(job_id, 16))).steps[1:])
    assert second.vm.cpus == 4  # type: ignore[union-attr]
    options = syz_program.options(third.reproducer.text)  # type: ignore[union-attr]
    assert (options.threaded, options.procs, options.repeat) == (False, 2, True)


@pytest.mark.thorough
async def test_jobs_are_ended_begun_again_tagged_and_found(
    http: httpx.AsyncClient, scheduler: Scheduler
) -> None:
    first, second = await new(http, BUILD, bugId="x"), await new(http, BUILD, bugId="y z")
    assert (await http.post(f"/jobs/{first}/abort")).json() is None
    assert (await http.post(f"/jobs/{first}/abort")).json() is None
    assert (await http.get(f"/jobs/{first}")).json()["status"] == "aborted"
    assert (await http.post(f"/jobs/{first}/restart")).json() is None
    assert (await http.get(f"/jobs/{first}")).json()["status"] == "pending"
    problem(await http.post(f"/jobs/{first}/restart?restartFrom=7"), 422, "peer_job")
    assert (await http.post(f"/jobs/{first}/tags/who?tagValue=ä+1")).json() is None
    assert (await http.get(f"/jobs/{first}/tags")).json() == {"bugId": "x", "who": "ä 1"}
    assert (await http.get(f"/jobs/{first}/tags/who")).json() == "ä 1"
    problem(await http.get(f"/jobs/{second}/tags/who"), 404, "tag_not_found")
    assert (await http.get("/tags")).json()["page"] == ["bugId", "who"]
    results = (await http.get("/search?tagKey=bugId")).json()
    assert results["page"] == [[second, "bugId", "y z"], [first, "bugId", "x"]]
    results = (await http.get("/search?tagKey=bugId&tagValue=y z")).json()
    assert (results["page"], results["total"]) == ([[second, "bugId", "y z"]], 1)
    page = (await http.get("/jobs?sortBy=createdTime&skip=1&pageSize=1")).json()
    assert ([row["jobId"] for row in page["page"]], page["total"]) == ([first], 2)


async def test_logs_come_latest_first(http: httpx.AsyncClient, scheduler: Scheduler) -> None:
    job_id = await new(http, BUILD)
    assignment = await take(scheduler)
    for line in ("one\n", "two\n"):
        assert await scheduler.report(assignment.lease, line, None)
    for path in (f"/jobs/{job_id}/log", "/system/displays/jobLog"):
        page = (await http.get(path)).json()
        assert [row["content"] for row in page["page"][:2]] == ["two\n", "one\n"]
        assert page["page"][0]["workerType"] == "kbuilder"
    assert (await http.get("/system/displays/systemLog")).json()["page"] == []
    assert "deploymentName" in (await http.get("/system/info")).json()


@pytest.mark.attack
@pytest.mark.parametrize("stage", json_rows(__file__, "refused_stages.jsonl"))
async def test_what_cannot_be_done_here_is_refused(http: httpx.AsyncClient, stage: Any) -> None:
    answer = await http.post("/newJob", json={"jobWorkers": [stage], "tags": {}})
    problem(answer, 422, "peer_job")


async def test_an_unknown_job_or_stage_is_none(http: httpx.AsyncClient) -> None:
    problem(await http.get("/jobs/0000ffff"), 404, "job_not_found")
    assert (await http.get("/jobs/1")).status_code == 422
    wrong = {"jobWorkers": [{"workerType": "kprebuilder"}], "tags": {}}
    assert (await http.post("/newJob", json=wrong)).status_code == 422


@given(st.text(min_size=1, max_size=8), st.text(max_size=8))
def test_any_tag_comes_back(key: str, value: str) -> None:
    try:
        tag = tags.written(key, value)
    except UserError:
        return
    if key.isprintable() and value.isprintable():
        assert tags.read([tag]) == {key: value}
        assert tags.as_written(tag) == f"{key}={value}"


@pytest.mark.parametrize(("tag", "shown"), rows(__file__, "tags.tsv"))
def test_lists_show_tags_as_their_submitter_wrote_them(tag: str, shown: str) -> None:
    """Other tags stay as they are, and so do invisible characters, which could deceive."""
    assert tags.as_written(tag) == shown

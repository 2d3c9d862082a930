"""JSON for programs: as the schemas say, with all keys always, and problem documents for errors."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import jsonschema_rs
import pytest

from kgym.api import steps
from kgym.api.jobs import JobRequest
from kgym.client import Client
from kgym.crash import report
from kgym.worker.context import StepContext
from kgym_cli.output.answer import Problem, schema
from kgym_cli.platforms.embedded_platform import Platform
from kgym_cli.program import cli
from tests.cli.conftest import Kgym
from tests.cli.test_commands import LOG
from tests.cli.test_results import trial
from tests.cli.worked import working
from tests.results import built, ran
from tests.tables import json_rows

pytestmark = pytest.mark.thorough

PROBLEM = schema(Problem)


def commands(group: click.Group, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield (*path, name), command


ANSWERING = [
    path
    for path, command in commands(cli)
    if any("--json" in parameter.opts for parameter in command.params)
]


def test_every_command_that_answers_has_a_schema() -> None:
    assert len(ANSWERING) > 20
    for path, command in commands(cli):
        options = {option for parameter in command.params for option in parameter.opts}
        assert ("--json" in options) == ("--json-schema" in options), path


class Schemas:
    """The answers of `kgym`, each checked against what --json-schema of its command prints."""

    def __init__(self, kgym: Kgym) -> None:
        self._kgym = kgym
        self._known: dict[tuple[str, ...], Any] = {}

    def answer(self, *words: object, status: int = 0, stdin: str = "") -> Any:
        done = self._kgym(*words, "--json", stdin=stdin)
        assert done.status == status, done.err
        path = next(
            answering
            for answering in ANSWERING
            if answering == tuple(map(str, words[: len(answering)]))
        )
        if path not in self._known:
            self._known[path] = json.loads(self._kgym(*path, "--json-schema").out)
        lines = [json.loads(line) for line in done.out.splitlines()]
        for line in lines:
            jsonschema_rs.validate(self._known[path], line)
        return lines[-1]


@pytest.fixture
def schemas(kgym: Kgym) -> Schemas:
    return Schemas(kgym)


def test_the_answers_without_jobs_are_as_their_schemas_say(
    schemas: Schemas, tmp_path: Path
) -> None:
    (tmp_path / "crash.log").write_text(LOG)
    (tmp_path / "calm.log").write_text("[    1.0] Run /init as init process\n")
    schemas.answer("bug", "list")
    assert schemas.answer("bug", "show", "epoll-loop")["class"]
    crash, calm = schemas.answer("report", "parse", tmp_path / "crash.log", tmp_path / "calm.log")
    assert crash.keys() == calm.keys()
    assert schemas.answer("gc").keys() == schemas.answer("gc", "--only", "logs").keys()


def test_the_answers_of_tokens_and_workers_are_as_their_schemas_say(
    schemas: Schemas, idle: Platform
) -> None:
    schemas.answer("worker", "list")
    kept = schemas.answer("du")
    assert {kind["kind"] for kind in kept["storage"]["kinds"]} >= {"artifacts", "database"}
    assert {entry["folder"] for entry in kept["local"]} >= {"cache/sources", "work"}
    assert schemas.answer("token", "create", "alice", "--scope", "read")["token"]
    schemas.answer("token", "list")
    schemas.answer("token", "revoke", "alice")


# --- jobs -----------------------------------------------------------------------------------------


def crashed(run: StepContext) -> steps.StepResult:
    """Answer as a step that saw LOG's crash on its second instance."""
    parsed = report.parse(LOG.encode())
    assert parsed is not None
    for number, title in ((0, "another crash"), (1, parsed.title)):
        values = {**parsed.as_dict(), "title": title, "instance": number}
        (run.folder / f"report-{number}.json").write_text(json.dumps(values))
    instances = [
        steps.InstanceResult(number=0, outcome=steps.InstanceOutcome.CRASH, title="another crash"),
        steps.InstanceResult(number=1, outcome=steps.InstanceOutcome.CRASH, title=parsed.title),
    ]
    result = ran(steps.Verdict.SAME_CRASH, parsed.title)
    return result.model_copy(update={"instances": instances})


def test_a_job_comes_with_its_verdict_and_the_crash_inline(
    schemas: Schemas, idle: Platform, data: Path
) -> None:
    does = {
        steps.StepKind.BUILD: lambda _: built(),
        steps.StepKind.REPRODUCE: lambda run: (
            crashed(run) if run.assignment.number == 1 else ran(steps.Verdict.NO_CRASH)
        ),
    }
    with working(idle, data, does), Client(idle.url) as client:
        client.wait(client.submit(trial(steps.Verdict.NO_CRASH)).id)
    job = schemas.answer("job", "show", 1)
    assert (job["verdict"], job["outcome"], job["failure"]) == ("no_crash", "resolved", None)
    [crash] = job["crashes"]
    assert (crash["step"], crash["instance"]) == (1, 1)
    assert "demo_release" in crash["report"]
    assert "demo_release" in [frame["function"] for frame in crash["frames"]]
    [listed] = schemas.answer("job", "list")
    assert listed["outcome"] == "resolved"
    schemas.answer("job", "fetch", 1, "report-1.json", "-o", data / "fetched")


def test_a_failure_is_inline_with_the_compilers_diagnostics(
    schemas: Schemas, fake_build: steps.BuildSpec
) -> None:
    broken = steps.Edit(file="kernel/sched.c", original="return", replacement="retrun")
    spec = fake_build.model_copy(update={"patches": [steps.Patch(edits=[broken])]})
    request = JobRequest(steps=[spec]).model_dump_json()
    job = schemas.answer("job", "submit", "-", "--wait", status=2, stdin=request)
    assert job["outcome"] == "does_not_compile"
    failure = job["failure"]
    assert (failure["step"], failure["reason"], failure["cause"]) == (0, "does_not_compile", "user")
    assert failure["diagnostics"][0]["file"] == "kernel/sched.c"
    assert "retrun" in failure["diagnostics"][0]["message"]


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "status", "reason", "http"), json_rows(__file__, "problems.jsonl")
)
def test_an_error_is_a_problem_document_on_stdout(
    kgym: Kgym, words: list[str], status: int, reason: str, http: int
) -> None:
    done = kgym(*words, "--json")
    problem = done.json
    jsonschema_rs.validate(PROBLEM, problem)
    jsonschema_rs.validate(json.loads(kgym(*words[:2], "--json-schema").out), problem)
    assert (done.status, problem["reason"], problem["status"]) == (status, reason, http)
    assert problem["detail"] in done.err.replace("Error: ", "")
    assert problem["type"] == f"urn:kgymsuite:problem:{reason}"
    assert kgym(*words).out == ""

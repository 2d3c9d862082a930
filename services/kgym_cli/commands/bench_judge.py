"""`kgym bench judge`."""

import asyncio
from pathlib import Path

import click
from pydantic import Field, ValidationError

from kgym.api.steps import Strict
from kgym.bench import attempt_files, dataset
from kgym.bench.attempt_record import BugId, Text
from kgym.errors import NotFound, UserError, file_errors
from kgym_benchmark.judge.judge import (
    MAJORITY,
    MOST_VOTES,
    VOTES,
    Agreement,
    Answer,
    Judge,
    JudgeOptions,
)
from kgym_benchmark.judge.question import Question
from kgym_cli import extras
from kgym_cli.agents import agent_models
from kgym_cli.bench.bug_choice_options import dataset_argument
from kgym_cli.output import Exit, json_option, leave, printed_json, results
from kgym_cli.output.answer import Answer as CommandAnswer
from kgym_cli.settings import options_of

JUDGED = "judged.jsonl"
# Most bytes of a file of labels.
LABELS = 64 << 20


class Label(Strict):
    """A person's label of a patch: one line of a file of labels."""

    bug: BugId
    diff: Text
    equivalent: bool


class AgreementAnswer(CommandAnswer):
    """Agreement of the judge with people's labels, which count as true."""

    counts: Agreement
    accuracy: float | None
    precision: float | None
    recall: float | None
    f1: float | None


class JudgeAnswer(CommandAnswer):
    """Result of the judge."""

    file: Path = Field(description="all attempts with their votes")
    patches: int = Field(description="distinct patches; each is judged once")
    equivalent: int = Field(description="patches with a majority of votes for equivalence")
    asked: int = Field(description="questions that this call asked")
    dollars: float = Field(description="cost of all answers, including earlier calls'")
    without_fix: int = Field(description="attempts on bugs whose fix is unknown: not judged")
    unfinished: int = Field(description="patches with missing votes, because a limit was reached")
    failed: int = Field(description="votes whose answers could not be read")
    undecided: int = Field(description="patches most of whose votes failed: equivalence unknown")
    agreement: AgreementAnswer | None = None


@click.command()
@dataset_argument
@options_of("bench judge")
@click.option("--model", required=True, help="PROVIDER:MODEL, or replay:TAPE.")
@click.option(
    "--attempts",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of attempts, one a line.  [default: attempts.jsonl in DIR]",
)
@click.option("--votes", type=click.IntRange(1, MOST_VOTES), default=VOTES, show_default=True)
@click.option(
    "--majority",
    type=click.IntRange(1, MOST_VOTES),
    default=MAJORITY,
    show_default=True,
    help="Votes for equivalence that make a patch equivalent.",
)
@click.option("--blind", is_flag=True, help="Do not reveal which patch is the developers'.")
@click.option("--unresolved", is_flag=True, help="Also judge patches that leave the crash.")
@click.option(
    "--dollars", type=click.FloatRange(0, min_open=True), help="Most dollars for all answers."
)
@click.option("--at-once", type=click.IntRange(1, 64), default=4, show_default=True)
@click.option(
    "--record", type=click.Path(path_type=Path, dir_okay=False), help="Tape for all answers."
)
@click.option(
    "--labels",
    type=click.Path(path_type=Path, dir_okay=False),
    help="People's labels: lines of JSON with bug, diff, equivalent.",
)
@json_option(JudgeAnswer)
def judge(
    folder: Path,
    model: str,
    attempts: Path | None,
    votes: int,
    majority: int,
    blind: bool,
    unresolved: bool,
    dollars: float | None,
    at_once: int,
    record: Path | None,
    labels: Path | None,
    as_json: bool,
) -> None:
    """Let a model vote on whether patches are equivalent to the developers'.

    DIR is a dataset's folder. Votes are kept in DIR/votes.jsonl: repeat the command after an
    interruption; nothing is asked twice. All attempts with their votes are in DIR/judged.jsonl.

    The exit status is 3 if most votes on a patch could not be read, so that its equivalence is
    unknown: repeat the command to ask for these votes again.
    """
    extras.require("agent")
    whole = dataset.load(folder)
    known = list(attempt_files.read(attempts or folder / attempt_files.NAME))
    people = _labels(labels) if labels is not None else None
    opened = agent_models.opener(record)(model)

    async def ask(question: Question, occurrence: str) -> Answer:
        from kgym_crashfixer.models.model import Call, ModelError  # noqa: PLC0415 - needs extras
        from kgym_crashfixer.prompts import Prompt  # noqa: PLC0415

        prompt = Prompt("judge", question.system, question.text)
        try:
            # Temperature 1: votes are independent samples, so that their majority means something.
            reply = await opened.ask(Call(prompt, temperature=1.0, occurrence=occurrence))
        except ModelError as error:
            if error.fatal:
                raise UserError(error.reason, error.message) from error
            # Any other error, such as a refusal, is an empty answer: a missing vote, not the end of
            # the run.
            return Answer("", 0.0)
        return Answer(reply.text, reply.price)

    async def run() -> JudgeAnswer:
        try:
            options = JudgeOptions(model, votes, blind, unresolved, dollars, at_once)
            judged = await Judge(folder, options, ask).judge(whole, known)
        finally:
            await opened.close()
        attempt_files.write(folder / JUDGED, judged.attempts)
        votes_of = {
            (attempt.bug, attempt.diff): attempt.votes
            for attempt in judged.attempts
            if attempt.votes is not None and attempt.diff
        }
        # The majority is one of all votes asked for; a patch most of whose votes failed has none.
        yes = {
            key: count.yes >= majority
            for key, count in votes_of.items()
            if count.equivalent is not None
        }
        return JudgeAnswer(
            file=folder / JUDGED,
            patches=judged.patches,
            equivalent=sum(yes.values()),
            asked=judged.asked,
            dollars=judged.dollars,
            without_fix=judged.without_fix,
            unfinished=judged.unfinished,
            failed=sum(count.failed for count in votes_of.values()),
            undecided=len(votes_of) - len(yes),
            agreement=None if people is None else _agreement(people, yes),
        )

    answer = asyncio.run(run())
    if not printed_json(answer, as_json):
        _show(answer)
    leave(Exit.INFRASTRUCTURE if answer.undecided else Exit.OK)


def _show(answer: JudgeAnswer) -> None:
    results.print(
        f"{answer.patches} patches, {answer.equivalent} equivalent, {answer.undecided} unknown;"
        f" {answer.asked} questions asked, {answer.failed} votes failed, ${answer.dollars:.2f} in"
        f" all; {answer.unfinished} patches with missing votes",
        markup=False,
    )
    if answer.without_fix:
        line = f"{answer.without_fix} attempts not judged: the developers' fix is unknown"
        results.print(line, markup=False)
    if answer.agreement is not None and answer.agreement.accuracy is not None:
        line = f"agreement with people: {100 * answer.agreement.accuracy:.1f} %"
        results.print(line, markup=False)


def _agreement(
    people: dict[tuple[str, str], bool], yes: dict[tuple[str, str], bool]
) -> AgreementAnswer:
    counts = Agreement.of((yes[key], people[key]) for key in yes.keys() & people)
    return AgreementAnswer(
        counts=counts,
        accuracy=counts.accuracy,
        precision=counts.precision,
        recall=counts.recall,
        f1=counts.f1,
    )


def _labels(path: Path) -> dict[tuple[str, str], bool]:
    with file_errors(path, "no_labels", NotFound), path.open("rb") as file:
        data = file.read(LABELS + 1)
    if len(data) > LABELS:
        raise UserError("bad_labels", f"{path} is larger than {LABELS >> 20} MiB")
    labels: dict[tuple[str, str], bool] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        try:
            label = Label.model_validate_json(line)
        except ValidationError as error:
            raise UserError("bad_labels", f"{path}:{number} is not a label") from error
        labels[label.bug, label.diff] = label.equivalent
    return labels

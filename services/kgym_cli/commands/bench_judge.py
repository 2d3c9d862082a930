"""`kgym bench judge`."""

import asyncio
from pathlib import Path

import click
from pydantic import Field

from kgym.api.steps import Strict
from kgym.bench import attempt_files, dataset
from kgym.bench.attempt_record import BugId, Text
from kgym.errors import UserError
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
from kgym_cli.inputs.parameters import FILE
from kgym_cli.output import Exit, json_option, leave, printed_json, results
from kgym_cli.output.answer import Answer as CommandAnswer
from kgym_cli.settings import options_of

JUDGED = "judged.jsonl"


class Label(Strict):
    """A person's label of a patch: one line of a file of labels."""

    bug: BugId
    diff: Text
    equivalent: bool


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
    agreement: Agreement | None = Field(None, description="with people's labels")


@click.command()
@dataset_argument
@options_of("bench judge")
@click.option("--model", required=True, help="PROVIDER:MODEL, or replay:TAPE.")
@click.option(
    "--attempts", type=FILE, help="File of attempts, one a line.  [default: attempts.jsonl in DIR]"
)
@click.option("--votes", type=click.IntRange(1, MOST_VOTES), default=VOTES)
@click.option(
    "--majority",
    type=click.IntRange(1, MOST_VOTES),
    default=MAJORITY,
    help="Votes for equivalence that make a patch equivalent.",
)
@click.option("--blind", is_flag=True, help="Do not reveal which patch is the developers'.")
@click.option("--unresolved", is_flag=True, help="Also judge patches that leave the crash.")
@click.option(
    "--dollars", type=click.FloatRange(0, min_open=True), help="Most dollars for all answers."
)
@click.option("--at-once", type=click.IntRange(1, 64), default=4)
@click.option("--record", type=FILE, help="Tape for all answers.")
@click.option(
    "--labels", type=FILE, help="People's labels: lines of JSON with bug, diff, equivalent."
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
    people = None
    if labels is not None:
        every = attempt_files.records(labels, Label)
        people = {(label.bug, label.diff): label.equivalent for label in every}
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
        # A majority of all requested votes decides: if most of a patch's votes failed, it has none.
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
            agreement=None
            if people is None
            else Agreement.of((yes[key], people[key]) for key in yes.keys() & people),
        )

    answer = asyncio.run(run())
    if not printed_json(answer, as_json):
        _show(answer)
    leave(Exit.INFRASTRUCTURE if answer.undecided else Exit.OK)


def _show(answer: JudgeAnswer) -> None:
    results.print(
        f"{answer.patches} patches, {answer.equivalent} equivalent, {answer.undecided} unknown;"
        f" {answer.asked} questions asked, {answer.failed} votes failed, ${answer.dollars:.2f} in"
        f" all; {answer.unfinished} patches with missing votes"
    )
    if answer.without_fix:
        results.print(f"{answer.without_fix} attempts not judged: the developers' fix is unknown")
    if answer.agreement is not None and answer.agreement.accuracy is not None:
        results.print(f"agreement with people: {100 * answer.agreement.accuracy:.1f} %")

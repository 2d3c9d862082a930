"""RGym's strategies, and what they are made of: whole functions, definitions, examples, causes."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from kgym.api.agent.conversation import ToolCall
from kgym.api.agent.nodes import CauseCommit, CauseFunction, Crash, NodeOutcome, Tried
from kgym.api.agent.runs import RunState
from kgym.api.agent.strategy import Cycle, Forest, Strategy
from kgym.api.steps import PatchCheck, PatchOutcome, Verdict
from kgym_crashfixer import prompts, strategies
from kgym_crashfixer.platform import wants_trace
from kgym_crashfixer.prompts import render
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.cycle import State
from kgym_crashfixer.search.search import Search
from kgym_crashfixer.search.work import (
    Answer,
    Check,
    Checked,
    Purpose,
    Question,
    Result,
    Seen,
    Source,
    Try,
)
from tests.crashfixer.agents import Guesser, agent, request
from tests.crashfixer.world import edit
from tests.tables import rows

FILE, OTHER, HEADER = "drivers/frob.c", "drivers/frob_core.c", "include/linux/frob.h"
TEXT = Path(__file__).with_name("frob.c").read_text()
CORE = "static int frob_core(void)\n{\n\treturn frob_set(NULL, -1, 0);\n}\n"
STRUCT = "struct frob {\n\tu8 modes[4];\n};\nstatic inline int frob_n(void)\n{\n\treturn 4;\n}\n"
CAUSE = CauseCommit(
    commit="c0ffee", title="frob: modes", functions=[CauseFunction(file=FILE, name="frob_get")]
)
TITLE = "KASAN: slab-out-of-bounds Write in frob_set"
FIRST = State(
    Code({FILE: TEXT, OTHER: CORE}), Crash(title=TITLE, report=f"BUG: {TITLE}"), cause=CAUSE
)
SHIPPED = ("rgym-simple", "rgym-exploration", "rgym-feedback")
OLD = TEXT[TEXT.index("static int frob_set") : TEXT.index("EXPORT")]


def new(condition: str, name: str = "frob_set", file: str = FILE) -> str:
    """Return an answer with the function as it shall be."""
    text = OLD.replace("index >= FROB_MODES", condition).replace("frob_set", name)
    return f"<reason>why</reason><file>{file}</file>\n<function>\n{text}</function>"


FIX = new("index < 0 || index >= FROB_MODES")
WRONG = new("index > FROB_MODES")


@dataclass
class Scripted:
    """A model whose answers are written down, by what it was asked for; the last one stays."""

    answers: dict[Purpose, Sequence[str | list[ToolCall]]]
    definitions: dict[str, Seen] = field(default_factory=dict)
    asked: list[Question] = field(default_factory=list)
    tried: list[str] = field(default_factory=list)
    looked: list[str] = field(default_factory=list)

    def result(self, work: object) -> Result:
        match work:
            case Question():
                number = sum(asked.purpose is work.purpose for asked in self.asked)
                self.asked.append(work)
                answers = self.answers[work.purpose]
                answer = answers[min(number, len(answers) - 1)]
                return Answer(text=answer) if isinstance(answer, str) else Answer(calls=answer)
            case Check(patches=patches):
                return Checked(patches=[_checked(patch.diff or "") for patch in patches])
            case Try(diff=diff):
                self.tried.append(diff)
                return _tried(diff)
            case Source(tool="definition"):
                name = str(work.arguments["name"])
                self.looked.append(name)
                return self.definitions.get(name, Seen(text="error: nowhere", succeeded=False))
            case Source(tool="whole"):
                return Seen(text=STRUCT)
        raise AssertionError(work)

    def of(self, purpose: Purpose) -> list[Question]:
        """Return the questions of a purpose."""
        return [question for question in self.asked if question.purpose is purpose]


def _checked(diff: str) -> PatchCheck:
    bad = "undeclared_name" in diff
    outcome = PatchOutcome.DOES_NOT_COMPILE if bad else PatchOutcome.COMPILES
    return PatchCheck(name="p", outcome=outcome, reason="undeclared" if bad else "", seconds=0)


def _tried(diff: str) -> Tried:
    if "+\tif (index < 0 ||" in diff:
        return Tried(verdict=Verdict.NO_CRASH, confidence=0.9)
    return Tried(verdict=Verdict.SAME_CRASH, crash=Crash(title=TITLE, report="again"))


def searched(strategy: Strategy, model: Scripted, first: State = FIRST) -> Search:
    search = Search(strategy, first)
    while ready := search.ask():
        for asked in ready:
            if isinstance(asked.work, Question):
                render(asked.work)  # each has its prompt
            search.tell(asked.name, model.result(asked.work))
    assert search.done
    return search


def call(name: str, /, **arguments: str) -> ToolCall:
    return ToolCall(id=f"{name}{len(arguments)}{arguments}", name=name, arguments={**arguments})


# --- the shipped strategies -----------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_each_is_shipped_and_says_where_it_comes_from(name: str) -> None:
    strategy = strategies.load(name)
    assert "RGym, section 2" in strategy.description
    assert (strategy.localisation, strategy.context) == ("cause", "stack")
    assert not wants_trace(strategy)
    assert f"`{name}`" in (strategies.CONFIGS.parent / "docs" / "strategies.md").read_text()


def test_the_simple_agent_asks_one_question() -> None:
    model = Scripted({Purpose.FUNCTIONS: [FIX]})
    (fix,) = searched(strategies.load("rgym-simple"), model).fixes()
    (asked,) = model.asked
    assert asked.values["names"] == ["frob_get"]
    text = render(asked).text
    assert 'commit c0ffee "frob: modes".\nIt changed\n- frob_get() in drivers/frob.c' in text
    assert "[example 2]" in text
    assert "<hypothesis" not in text
    assert "+\tif (index < 0 ||" in fix.diff
    assert fix.diff.count("\n+") == 2  # the header and the line: the tool writes the diff


def test_the_simple_agent_ends_with_its_one_patch() -> None:
    model = Scripted({Purpose.FUNCTIONS: [WRONG, FIX]})
    search = searched(strategies.load("rgym-simple"), model)
    assert not search.fixes()
    assert [asked.purpose for asked in model.asked] == [Purpose.FUNCTIONS]


def test_without_a_cause_the_prompt_has_none() -> None:
    model = Scripted({Purpose.FUNCTIONS: [FIX]})
    searched(strategies.load("rgym-simple"), model, replace(FIRST, cause=None))
    assert "<cause>" not in render(model.asked[0]).text


def test_the_exploration_agent_sees_what_it_asks_for_before_it_patches() -> None:
    seen = Seen(text="struct frob { … };", paths=[HEADER])
    model = Scripted(
        {
            Purpose.DEFINITIONS: [
                [call("definition", name="frob"), call("definition", name="frob_n")],
                [call("definition", name="frob_gone"), call("read_file", path="x")],
                [call("enough", explanation="index may be negative")],
            ],
            Purpose.FUNCTIONS: [FIX],
        },
        {"frob": seen, "frob_n": replace_text(seen, "static inline …")},
    )
    search = searched(strategies.load("rgym-exploration"), model)
    assert search.fixes()
    assert model.looked == ["frob", "frob_n", "frob_gone"]
    results = list(model.of(Purpose.DEFINITIONS)[2].turns[-1].results.values())
    there = "the tools are definition, enough"
    assert results == ["error: nowhere", f"error: there is no tool 'read_file'; {there}"]
    (patch,) = model.of(Purpose.FUNCTIONS)
    assert patch.values["names"] == ["frob", "frob_n", "frob_get"]
    assert list(patch.values["files"]) == [FILE, OTHER, HEADER]
    assert "<solution>\nindex may be negative\n</solution>" in render(patch).text
    (node,) = search.nodes.values()
    assert (node.further_files, node.hypothesis) == ([HEADER], "index may be negative")


def replace_text(seen: Seen, text: str) -> Seen:
    return seen.model_copy(update={"text": text})


def test_a_model_that_explores_for_ever_patches_when_its_turns_are_over() -> None:
    model = Scripted(
        {Purpose.DEFINITIONS: [[call("definition", name="frob")]], Purpose.FUNCTIONS: [FIX]}
    )
    assert searched(strategies.load("rgym-exploration"), model).fixes()
    turns = model.of(Purpose.DEFINITIONS)
    assert len(turns) == 10
    assert "[one turn is left" in next(iter(turns[-1].turns[-1].results.values()))


@pytest.mark.attack
def test_an_exploration_is_bounded_whatever_is_asked_for() -> None:
    class Endless(dict[str, Seen]):
        def get(self, name: str, default: object = None) -> Seen:  # type: ignore[override]
            return Seen(text="x" * 10_000_000, paths=[f"lib/{name}.c"])

    many = [call("definition", name=f"n{number}") for number in range(100)]
    bent = [
        ToolCall(id="b", name="definition", arguments="{"),
        ToolCall(id="c", name="enough", arguments="["),
    ]
    model = Scripted(
        {Purpose.DEFINITIONS: [[*many], many[50:], bent], Purpose.FUNCTIONS: [FIX]}, Endless()
    )
    search = searched(strategies.load("rgym-exploration"), model)
    (patch,) = model.of(Purpose.FUNCTIONS)
    assert len(patch.values["names"]) <= 41
    assert len(patch.values["files"]) <= 2 + 8
    assert all(len(node.further_files) <= 8 for node in search.nodes.values())
    assert len(model.looked) <= 10 * 16
    last = model.of(Purpose.DEFINITIONS)[1].turns[-1].results.values()
    assert all(len(text) < 65_000 for text in last)


def test_feedback_restarts_three_times_with_a_summary_of_what_failed() -> None:
    model = Scripted(
        {
            Purpose.FUNCTIONS: [WRONG, new("undeclared_name"), "no idea", FIX],
            Purpose.REPAIR: [new("undeclared_name + 1"), "no idea again"],
            Purpose.SUMMARY: ["it still crashes", "it did not compile", "nothing was written"],
        }
    )
    search = searched(strategies.load("rgym-feedback"), model)
    assert search.fixes()
    asked = model.of(Purpose.FUNCTIONS)
    assert [len(question.values["lessons"]) for question in asked] == [0, 1, 2, 3]
    assert [lesson["summary"] for lesson in asked[-1].values["lessons"]] == [
        "it still crashes",
        "it did not compile",
        "nothing was written",
    ]
    # Each begins anew, and is not built upon the one before.
    assert all(question.values["files"][FILE] == TEXT for question in asked)
    summaries = [render(question).text for question in model.of(Purpose.SUMMARY)]
    assert "This patch was built and run:" in summaries[0]
    assert "This patch could not be built:" in summaries[1]
    assert "undeclared" in summaries[1]
    assert "What is wrong with it:" in summaries[2]
    outcomes = [lesson["outcome"] for lesson in asked[-1].values["lessons"]]
    assert outcomes[0] == TITLE
    assert outcomes[1].startswith("It does not compile")
    assert outcomes[2].startswith("The answer cannot be read")


def test_feedback_gives_up_after_the_third_restart() -> None:
    model = Scripted(
        {Purpose.FUNCTIONS: ["no idea"], Purpose.REPAIR: ["none"], Purpose.SUMMARY: ["-"]}
    )
    search = searched(strategies.load("rgym-feedback"), model)
    assert len(model.of(Purpose.FUNCTIONS)) == 4
    assert {node.outcome for node in search.nodes.values()} == {NodeOutcome.NO_PATCH}
    assert not model.tried


def test_other_strategies_sum_up_no_patch_that_was_not_built() -> None:
    cycle = Cycle(answer="functions", hypotheses=0, patches=1, rounds=1, repairs=0)
    model = Scripted({Purpose.FUNCTIONS: ["no idea"]})
    searched(Forest(trees=1, depth=2, cycle=cycle), model)
    assert {asked.purpose for asked in model.asked} == {Purpose.FUNCTIONS}


# --- functions that cannot be put in place --------------------------------------------------------

ONE = Forest(
    trees=1,
    depth=1,
    cycle=Cycle(answer="functions", hypotheses=0, patches=1, rounds=1, repairs=1, summaries=False),
)
EDIT = (
    f"<file>{FILE}</file><original>\n#define FROB_MODES 4\n</original>"
    "<patched>\n#define FROB_MODES 3\n</patched>"
)


def problem_of(answer: str, first: State = FIRST) -> str:
    """Return what the model is told about an answer, which it then mends."""
    model = Scripted({Purpose.FUNCTIONS: [answer], Purpose.REPAIR: [FIX]})
    search = searched(ONE, model, first)
    (repair,) = model.of(Purpose.REPAIR)
    assert search.fixes(), "the repair is taken"
    problem = str(repair.values["problem"])
    assert problem in render(repair).text
    assert "as modifications instead" in render(repair).text
    return problem


@pytest.mark.thorough
@pytest.mark.attack
@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (new("1", name="frob_gone"), "drivers/frob.c: there is no function frob_gone() here"),
        (new("1", file="drivers/evil.c"), "only these files can be changed: drivers/frob.c"),
        (new("1", file="../../etc/passwd"), "only these files can be"),
        (new("1", file=OTHER), "drivers/frob_core.c: there is no function frob_set() here"),
        (new("1", name="frob_\u0455et"), "non-ASCII characters (U+0455)"),
        (new("index >= FROB_MODES) /* \u2066 */ (0"), "does not parse|non-ASCII"),
        (new("(index"), "does not parse"),
        (new("1").replace("{\n", '{\n#include "/etc/shadow"\n'), "include headers at the top"),
        (new("1").replace("</function>", ""), "a modification is not whole"),
        (f"<file>{FILE}</file><function>\n{OLD}{OLD}</function>", "contains 2 functions"),
        (f"<function>\n{'x' * 300_000}\n</function>", "more than 200000 characters"),
        (f"<function>int f(void)\n{{\n{'a();' * 40_000}}}\n</function>", "limit is 100000"),
        ("".join(f"<function>int a{n}()\n{{\n}}</function>" for n in range(21)), "more than 20"),
        ("\n<function>" * 50_000, "is not whole"),
        (f"<file>{FILE}</file><function>\n{OLD}</function>", "the code is as it was"),
        ("```c\nint frob_set(void);\n```", "or <function>"),
        ("<function>\nint frob_gone(void)\n{\n}\n</function>", "'frob_gone()' is in no file"),
    ],
)  # fmt: skip
def test_a_function_that_cannot_be_put_in_place_goes_back_with_the_reason(
    answer: str, words: str
) -> None:
    problem = problem_of(answer)
    assert any(word in problem for word in words.split("|")), problem
    assert len(problem) < 20_000


def test_a_function_that_several_files_have_needs_its_file() -> None:
    both = Code({FILE: TEXT, OTHER: TEXT.replace("EXPORT_SYMBOL(frob_set);\n", "")})
    answer = new("1").replace(f"<file>{FILE}</file>", "")
    problem = problem_of(answer, replace(FIRST, code=both))
    assert "'frob_set()' is in drivers/frob.c and drivers/frob_core.c: name its <file>" in problem


def test_a_function_that_is_there_twice_is_told_with_its_lines() -> None:
    twice = TEXT + f"#ifdef CONFIG_FROB\n{OLD.replace('frob_set', 'frob_end')}#else\n"
    twice += f"{OLD.replace('frob_set', 'frob_end')}#endif\n"
    problem = problem_of(new("1", name="frob_end"), replace(FIRST, code=Code({FILE: twice})))
    assert "frob_end() is defined 2 times here, in lines 17, 25" in problem


def test_what_macros_hide_is_changed_by_modifications() -> None:
    made = TEXT + "\nDEFINE_FROB(frob_made)\n{\n\treturn index_of(1);\n}\n"
    state = replace(FIRST, code=Code({FILE: made}))
    whole = (
        f"<file>{FILE}</file><function>\nDEFINE_FROB(frob_made)\n{{\n\treturn 0;\n}}\n</function>"
    )
    piece = (
        f"<file>{FILE}</file><original>\n\treturn index_of(1);\n</original>"
        "<patched>\n\tif (index < 0 || 1)\n\t\treturn 0;\n</patched>"
    )
    model = Scripted({Purpose.FUNCTIONS: [whole], Purpose.REPAIR: [piece]})
    (fix,) = searched(ONE, model, state).fixes()
    assert "does not parse as a C function" in model.of(Purpose.REPAIR)[0].values["problem"]
    assert "index_of" in fix.diff


def test_a_first_answer_may_have_modifications_too() -> None:
    model = Scripted({Purpose.FUNCTIONS: [EDIT]})
    searched(ONE, model)
    assert "+#define FROB_MODES 3" in model.tried[0]


def test_functions_of_several_files_make_one_diff() -> None:
    core = f"<file>./{OTHER}</file><function>\n{CORE.replace('-1', '1')}</function>"
    model = Scripted({Purpose.FUNCTIONS: [f"{FIX}{core}"]})
    (fix,) = searched(ONE, model).fixes()
    assert [line for line in fix.diff.splitlines() if line.startswith("+++")] == [
        f"+++ b/{FILE}",
        f"+++ b/{OTHER}",
    ]


def test_children_go_on_with_the_functions_as_they_are_then() -> None:
    deep = ONE.model_copy(update={"depth": 2})
    second = new("index < 0 || index >= FROB_MODES")
    model = Scripted({Purpose.FUNCTIONS: [WRONG, second]})
    (fix,) = searched(deep, model).fixes()
    assert "index > FROB_MODES" in model.of(Purpose.FUNCTIONS)[1].values["files"][FILE]
    assert "index > FROB_MODES" not in fix.diff


# --- examples -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("title", "name"), rows(__file__, "example_classes.tsv"))
def test_a_crash_has_the_examples_of_its_class(title: str, name: str) -> None:
    examples = prompts.examples(title)
    expected = prompts.classes()[name].patches if name else []
    assert examples == [patch.model_dump() for patch in expected]


def test_examples_are_whole_functions_and_differ() -> None:
    for crash_class in prompts.classes().values():
        for patch in crash_class.patches:
            code = Code({FILE: patch.before})
            answer = f"<function>{patch.after}</function>"
            model = Scripted({Purpose.FUNCTIONS: [answer]})
            searched(ONE, model, replace(FIRST, code=code))
            assert len(set(model.tried)) == 1, patch.about


# --- a whole run ----------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_run_of_the_agent_begins_each_restart_with_what_it_was_told(tmp_path: Path) -> None:
    def guess(purpose: str, text: str) -> str:
        if purpose == "functions":
            return edit("99", ["word", "8", "16"][text.count("[what it teaches]")])
        return edit("99", "word") if purpose == "repair" else "it failed"

    model = Guesser(guess)
    async with agent(tmp_path, model) as made:
        run = await made.agent.start(request("rgym-feedback"))
        await made.agent.wait(run)
        view = await made.agent.show(run)
        await made.agent.report(run)
    assert view.state is RunState.RESOLVED
    assert [node.outcome for node in view.nodes] == ["no_patch", "crashed", "resolved"]
    asked = [call.prompt.purpose for call in model.asked]
    assert asked == ["functions", "repair", "summary", "functions", "summary", "functions"]
    assert not any(call.tools for call in model.asked)


@pytest.mark.anyio
async def test_a_run_that_explores_is_given_the_tools_for_it(tmp_path: Path) -> None:
    model = Guesser(lambda purpose, _: edit("99", "16") if purpose == "functions" else "the limit")
    async with agent(tmp_path, model) as made:
        run = await made.agent.start(request("rgym-exploration"))
        await made.agent.wait(run)
        view = await made.agent.show(run)
    assert view.state is RunState.RESOLVED
    first, second = model.asked
    assert [tool.name for tool in first.tools] == ["definition", "enough"]
    assert not second.tools
    assert "<solution>\nthe limit\n</solution>" in second.prompt.text

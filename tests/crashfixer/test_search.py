"""The search for a fix, on a made-up kernel."""

import random
import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import JsonValue

from kgym.api.agent.conversation import ToolCall
from kgym.api.agent.nodes import Crash, NodeOutcome, Tried
from kgym.api.agent.runs import NodeView, Spent
from kgym.api.agent.strategy import BestFirst, Cycle, Escalate, Forest, Phase, Strategy, Tool
from kgym.api.steps import PatchCheck, PatchOutcome, Verdict
from kgym_crashfixer.search import work
from kgym_crashfixer.search.code import Code
from kgym_crashfixer.search.engine import Asked
from kgym_crashfixer.search.search import Search
from tests.crashfixer.world import FILE, FIRST, FURTHER, World, edit, limit, run


def _cycle(**options: Any) -> Cycle:
    """Return a cycle, without what would be nonsense together."""
    if options["hypotheses"] > 1 and not options["reflection"]:
        options["questions"] = "apart"
    if options["hypotheses"] <= 1 and options["patches"] == 1:
        options["questions"] = "apart"
    if options["answer"] != "edits":
        options["questions"] = "apart"
    if not options["hypotheses"] and options["summaries"] == "hypothesis":
        options["summaries"] = True
    return Cycle(**options)


CYCLES = st.builds(
    _cycle,
    hypotheses=st.integers(0, 3),
    reflection=st.booleans(),
    patches=st.integers(1, 3),
    questions=st.sampled_from(["apart", "together"]),
    answer=st.sampled_from(["edits", "edits", "functions"]),
    looks=st.sampled_from([0, 0, 3]),
    explore=st.sampled_from([0, 0, 3]),
    examples=st.booleans(),
    cause=st.booleans(),
    select=st.sampled_from(["first", "consistency"]),
    repairs=st.integers(0, 2),
    mend=st.sampled_from(["all", "needed"]),
    rounds=st.integers(1, 2),
    summaries=st.sampled_from([False, True, "hypothesis", "always"]),
)
SHAPES: dict[str, st.SearchStrategy[Any]] = {
    "depth": st.integers(1, 3),
    "branching": st.integers(1, 3),
    "stop": st.sampled_from(["branch", "tree", "forest"]),
    "validate_with": st.integers(0, 1),
    "cycle": CYCLES,
}
STARTS = st.lists(st.sampled_from(["hypothesis", "patch"]), min_size=1, max_size=2)
ALL_FORESTS = st.builds(Forest, trees=st.integers(1, 3), branch_at=STARTS, **SHAPES) | st.builds(
    Forest,
    grow=st.just("progress"),
    trees=st.integers(1, 6),
    further=st.none() | st.integers(0, 3),
    **SHAPES,
)
BEST_FIRST = st.builds(
    BestFirst,
    cycles=st.integers(1, 6),
    width=st.integers(1, 4),
    depth=st.integers(1, 4),
    review=st.integers(0, 2),
    stop=st.sampled_from(["branch", "forest"]),
    cycle=CYCLES,
)
TOOLS = st.builds(
    Tool,
    turns=st.integers(1, 20),
    kernels=st.integers(1, 3),
    feedback=st.booleans(),
    validate_with=st.integers(0, 1),
)
ESCALATE = st.lists(
    st.builds(Phase, strategy=TOOLS | ALL_FORESTS | BEST_FIRST, times=st.integers(1, 2)),
    min_size=1,
    max_size=3,
).map(lambda phases: Escalate(phases=phases))
STRATEGIES = ALL_FORESTS | BEST_FIRST | TOOLS | ESCALATE
GUESSES = st.lists(
    st.sampled_from(["16", "0", "7", "8", "9", "10", "11", "88", "99", "word", "none"]),
    min_size=1,
    max_size=6,
)


def searched(strategy: Strategy, world: World, order: int = 0) -> Search:
    search = Search(strategy, FIRST)
    chance = random.Random(order)
    run(search, world, (lambda ready: chance.randrange(len(ready))) if order else lambda _: 0)
    assert search.done
    return search


@pytest.mark.thorough
@settings(deadline=None, max_examples=60)
@given(STRATEGIES, GUESSES, st.integers(0, 5), st.integers(0, 3), st.sampled_from([0.0, 0.1]))
def test_whatever_a_strategy_meets_it_ends_and_tries_nothing_twice(
    strategy: Strategy, guesses: list[str], seed: int, order: int, away: float
) -> None:
    world = World(seed, guesses, flaky=0.1, away=away)
    search = searched(strategy, world, order)
    assert all(node.outcome is not None for node in search.nodes.values())
    failed: Counter[str] = Counter()
    for asked, result in world.done:
        if isinstance(asked.work, work.Try) and isinstance(result, Tried):
            assert asked.work.diff
            if result.verdict is not Verdict.INCONCLUSIVE and not result.noise:
                failed[asked.work.diff] += not result.resolved
    assert all(count <= 1 for count in failed.values())
    for node in search.nodes.values():
        if node.outcome in {NodeOutcome.RESOLVED, NodeOutcome.CRASHED, NodeOutcome.REJECTED}:
            assert node.tried is not None
            assert node.tried.resolved is (node.outcome is NodeOutcome.RESOLVED)


@settings(deadline=None, max_examples=40)
@given(STRATEGIES, GUESSES, st.integers(0, 5), st.integers(1, 30))
def test_a_search_that_is_stopped_leaves_nothing_under_way(
    strategy: Strategy, guesses: list[str], seed: int, steps: int
) -> None:
    search, world = Search(strategy, FIRST), World(seed, guesses)
    begun = {asked.name: asked for asked in search.ask()}
    for _ in range(steps):
        if not begun:
            break
        name = next(iter(begun))
        search.tell(name, world.result(begun.pop(name)))
        for gone in search.dropped():
            del begun[gone]
        begun |= {asked.name: asked for asked in search.ask()}
    search.stop()
    assert set(search.dropped()) == set(begun)
    assert not search.ask()
    assert search.done
    assert all(node.outcome is not None for node in search.nodes.values())


@settings(deadline=None, max_examples=40)
@given(TOOLS, GUESSES, st.integers(0, 20))
def test_a_plain_agent_runs_no_more_kernels_than_it_may(
    strategy: Tool, guesses: list[str], seed: int
) -> None:
    world = World(seed, guesses)
    search = searched(strategy, world)
    (node,) = search.nodes.values()
    tried = {asked.work.diff for asked, _ in world.done if isinstance(asked.work, work.Try)}
    assert len(tried) <= (strategy.kernels + 1 if strategy.feedback else 1)
    assert len(world.questions()) <= strategy.turns
    assert (node.outcome is NodeOutcome.RESOLVED) is bool(search.fixes())


@pytest.mark.thorough
@settings(deadline=None, max_examples=40)
@given(ALL_FORESTS, GUESSES, st.integers(0, 5), st.integers(0, 3))
def test_a_forest_keeps_its_shape_and_tries_nothing_twice(
    strategy: Forest, guesses: list[str], seed: int, order: int
) -> None:
    world = World(seed, guesses, flaky=0.1)
    search = searched(strategy, world, order)
    names = [asked.name for asked, _ in world.done]
    assert len(names) == len(set(names))
    counted = [
        node for node in search.nodes.values() if node.outcome is not NodeOutcome.INCONCLUSIVE
    ]
    full = sum(strategy.branching**level for level in range(strategy.depth))
    assert len(counted) <= strategy.trees * full
    assert all(1 <= node.depth <= strategy.depth for node in counted)
    children = Counter(node.parent for node in counted if node.parent)
    assert all(count <= strategy.branching for count in children.values())
    tried = Counter(
        node.candidates[node.chosen].digest
        for node in counted
        if node.chosen is not None and node.outcome is not NodeOutcome.NO_PATCH
    )
    assert all(count == 1 for count in tried.values())


@pytest.mark.thorough
@settings(deadline=None, max_examples=40)
@given(ALL_FORESTS, GUESSES, st.integers(0, 5))
def test_a_fix_is_a_fix_and_ends_what_it_shall(
    strategy: Forest, guesses: list[str], seed: int
) -> None:
    search = searched(strategy, World(seed, guesses))
    for fix in search.fixes():
        assert "+#define LIMIT 16" in fix.diff
        runs = [run for run in search.nodes[fix.node].runs if run.resolved]
        assert len(runs) == 1 + strategy.validate_with
    resolved = [node for node in search.nodes.values() if node.outcome is NodeOutcome.RESOLVED]
    assert not any(node.parent == run.name for run in resolved for node in search.nodes.values())
    if strategy.stop == "forest":
        assert len(resolved) <= 1
    if strategy.stop == "tree":
        trees = [node.name.partition(".")[0].partition("~")[0] for node in resolved]
        assert len(trees) == len(set(trees))


@pytest.mark.thorough
@settings(deadline=None, max_examples=40)
@given(STRATEGIES, GUESSES, st.integers(0, 3), st.integers(1, 3), st.data())
def test_a_search_that_was_stopped_goes_on_as_if_nothing_had_happened(
    strategy: Strategy, guesses: list[str], seed: int, order: int, data: st.DataObject
) -> None:
    chance = random.Random(order)
    whole = Search(strategy, FIRST)
    world = World(seed, guesses, flaky=0.1)
    results = run(whole, world, lambda ready: chance.randrange(len(ready)))
    at = data.draw(st.integers(0, len(results)))
    again = Search(strategy, FIRST)
    for name, result in results[:at]:
        again.tell(name, result)
    at_which = {name: number for number, (name, _) in enumerate(results)}
    world = World(seed, guesses, flaky=0.1)
    never = len(results)  # what was dropped before it was done
    run(
        again,
        world,
        lambda ready: min(
            range(len(ready)), key=lambda index: at_which.get(ready[index].name, never)
        ),
    )
    assert again.done
    assert list(again.nodes.values()) == list(whole.nodes.values())
    assert [asked.name for asked, _ in world.done] == [name for name, _ in results[at:]]


def test_children_inherit_the_code_and_the_crash() -> None:
    strategy = Forest(trees=1, depth=2, cycle=Cycle(hypotheses=0, patches=1, repairs=0))
    world = World(1, ["7", "8"])
    search = searched(strategy, world)
    first, second = search.nodes.values()
    asked = world.questions(node="t0.0")[0]
    assert first.tried is not None
    assert limit(asked.values["files"][FILE]) in {"7", "8"}
    assert asked.values["report"] in {"7", "8"}
    assert asked.values["lessons"][0]["summary"] == "it failed"
    assert second.parent == first.name


def test_a_patch_that_silences_the_kernel_is_told_and_not_built_upon() -> None:
    strategy = Forest(trees=1, depth=2, cycle=Cycle(hypotheses=0, patches=1))
    world = World(3, ["0"])
    search = searched(strategy, world)
    first = search.nodes["t0"]
    assert first.outcome is NodeOutcome.REJECTED
    asked = world.questions(node="t0.0")[0]
    assert asked.values["lessons"][0]["outcome"] == "no crash, but rejected: early_return"
    assert "LIMIT 99" in asked.values["files"][FILE]


def test_best_first_spends_its_cycles_and_finds_what_can_be_found() -> None:
    strategy = BestFirst(cycles=12, width=3, cycle=Cycle(hypotheses=1, patches=2))
    search = searched(strategy, World(5, ["7", "8", "9", "word", "16"]))
    assert search.fixes()
    hopeless = searched(strategy, World(5, ["7", "8", "9", "10", "word"]))
    assert not hopeless.fixes()
    assert len(hopeless.nodes) == 12


def test_workers_of_best_first_share_the_answer_that_they_begin_with() -> None:
    cycle = Cycle(questions="together", hypotheses=4, patches=2, looks=2)
    search = Search(BestFirst(cycles=6, width=3, cycle=cycle), FIRST)
    (asked,) = search.ask()
    while asked.work.purpose is work.Purpose.FILES:  # which no other worker searches
        search.tell(asked.name, work.Answer(text="I have seen enough"))
        (asked,) = search.ask()
    solutions = "".join(f"<solution>It is {guess}</solution>" for guess in "1234")
    search.tell(asked.name, work.Answer(text=f"{solutions}<ranking>3, 1, 2, 4</ranking>"))
    begun = [(asked.work.node, asked.work.values["hypothesis"]) for asked in search.ask()]
    assert begun == [("c0", "It is 3"), ("c1", "It is 1"), ("c2", "It is 2")]


@pytest.mark.parametrize("looks", [0, 2])
def test_the_crash_is_traced_beside_the_search_for_files(looks: int) -> None:
    search = Search(Forest(trees=1, cycle=Cycle(hypotheses=1, looks=looks)), FIRST, [FILE])
    trace, *asked = search.ask()
    assert trace.work == work.Trace(files=[FILE])
    # The paper's setups have the trace in their first question.
    assert [asked.work.word for asked in asked] == (["files"] if looks else [])
    search.tell(trace.name, work.Seen(text="f() [active]"))
    for question in asked:
        search.tell(question.name, work.Answer())
    while (question := search.ask()[0].work).purpose is not work.Purpose.HYPOTHESIS:
        search.tell(question.occurrence, work.Answer())
    assert question.values["trace"] == "f() [active]"


@pytest.mark.parametrize("kind", [work.Try, work.Check])
def test_a_platform_that_is_away_costs_no_cycle_and_few_questions(kind: type) -> None:
    class Away(World):
        def _result(self, asked: Asked) -> work.Result:
            if isinstance(asked.work, kind):
                return work.Unanswered(reason="the platform is away")
            return super()._result(asked)

    search = searched(Forest(trees=1, depth=4, cycle=Cycle(patches=1)), Away(1, ["7"]))
    assert {node.outcome for node in search.nodes.values()} == {NodeOutcome.INCONCLUSIVE}
    assert {node.depth for node in search.nodes.values()} == {1}
    assert {node.rounds for node in search.nodes.values()} == {1}


def test_a_kernel_that_does_not_build_is_mended_and_no_failure_of_the_platform() -> None:
    cycle = Cycle(hypotheses=0, patches=1, rounds=1, repairs=1)
    world = World(4, ["88"])
    search = searched(Forest(trees=1, depth=1, cycle=cycle), world)
    assert [node.outcome for node in search.nodes.values()] == [NodeOutcome.NO_PATCH]
    (repair,) = world.questions(work.Purpose.REPAIR)
    assert repair.values["problem"] == "It does not build: ld: no"


def test_a_change_that_another_tree_tried_is_told_to_this_one() -> None:
    strategy = Forest(trees=2, depth=1, cycle=Cycle(hypotheses=0, patches=1, rounds=2))
    world = World(1, ["8"])

    def in_turn(ready: list[Asked]) -> int:
        return min(range(len(ready)), key=lambda index: ready[index].name.partition("/")[0])

    run(Search(strategy, FIRST), world, in_turn)
    second = world.questions(node="t1")
    assert second[0].values["lessons"] == []
    (lesson,) = second[-1].values["lessons"]
    assert lesson["diff"].count("+#define LIMIT 8") == 1


def test_without_summaries_children_know_but_what_they_inherit() -> None:
    cycle = Cycle(hypotheses=0, patches=1, repairs=0, summaries=False)
    world = World(1, ["7", "8"])
    searched(Forest(trees=1, depth=2, cycle=cycle), world)
    asked = world.questions(node="t0.0")[0]
    assert asked.values["lessons"] == []
    assert "LIMIT" in asked.values["changed"]


def test_equal_questions_of_different_trees_are_told_apart() -> None:
    world = World(1, ["7", "8"])
    searched(Forest(trees=3, depth=1), world)
    asked = [question.occurrence for question in world.questions()]
    assert len(set(asked)) == len(asked)


def test_a_later_phase_knows_every_patch_that_an_earlier_one_tried() -> None:
    world = World(6, ["7", "8", "9", "10"])
    strategy = Escalate(
        phases=[
            Phase(strategy=Tool(turns=40, kernels=3)),
            Phase(strategy=Forest(trees=1, depth=1, cycle=Cycle(hypotheses=0, patches=1))),
        ]
    )
    searched(strategy, world)
    tried = {
        asked.work.diff
        for asked, result in world.done
        if isinstance(asked.work, work.Try) and asked.work.node == "phase0"
    }
    asked = world.questions(node="phase1.t0")[0]
    assert len(tried) > 1
    assert {lesson["diff"] for lesson in asked.values["lessons"]} == tried


def test_agreement_counts_trees() -> None:
    world = World(1, ["16"])
    strategy = Forest(
        trees=3, depth=1, stop="branch", cycle=Cycle(hypotheses=0, patches=2, repairs=0)
    )
    (fix,) = searched(strategy, world).fixes()
    assert fix.agreement == 3


def test_a_look_at_the_source_is_no_longer_than_a_conversation_can_bear() -> None:
    calls = [ToolCall(id="1", name="read_file", arguments={"path": FILE})]
    (result,) = tool_results(calls, work.Seen(text="x" * 10_000_000)).values()
    assert len(result) < 65_000


def tool_results(calls: list[ToolCall], seen: work.Result) -> dict[str, str]:
    """Return the answers to tool calls of an agent that is shown this of the source."""
    search = Search(Tool(), FIRST)
    (asked,) = search.ask()
    search.tell(asked.name, work.Answer(calls=calls))
    while not isinstance((asked := search.ask()[0]).work, work.Question):
        search.tell(asked.name, seen)
    return dict(asked.work.turns[-1].results)


def test_a_call_of_no_tool_and_one_with_an_unknown_argument_are_refused_by_name() -> None:
    edited: dict[str, JsonValue] = {"file": FILE, "original": "#define", "replacement": ""}
    calls = [
        ToolCall(id="1", name="read_file", arguments={"path": FILE, "first": 1}),
        ToolCall(id="2", name="grep", arguments={}),
        ToolCall(id="3", name="edit", arguments={**edited, "old_string": "a"}),
        ToolCall(id="4", name="check", arguments="{"),
        ToolCall(id="5", name="edit", arguments=edited),
        ToolCall(id="6", name="check", arguments={"patch": "a"}),
    ]
    assert list(tool_results(calls, work.Seen(text=FIRST.code.files[FILE])).values()) == [
        "error: read_file has no argument 'first'; its arguments: path, start, end",
        "error: there is no tool 'grep'; the tools are read_file, list_folder, search, symbol,"
        " definition, reproducer, console, kernel_config, machine_code, layout, git_log,"
        " git_show, git_blame, edit, reset, check, run_kernel, trace, run_program, done",
        "error: edit has no argument 'old_string'; its arguments: file, original, replacement",
        "error: the arguments of check are no JSON object",
        f"error: the original occurs 2 times in {FILE}, not once: add lines before or after it. It"
        " is in\n1: #define OTHER 1\n2: #define LIMIT 99",
        "error: check has no argument 'patch'; its arguments: none",
    ]


def test_a_check_that_a_limit_ended_is_no_compile_error() -> None:
    class Limited(World):
        def result(self, asked: Asked) -> work.Result:
            result = super().result(asked)
            if not isinstance(result, work.Checked):
                return result
            over = {"outcome": PatchOutcome.OVER_LIMIT}
            return work.Checked(patches=[patch.model_copy(update=over) for patch in result.patches])

    world = Limited(1, ["16"])
    search = Search(Forest(trees=1, depth=1), FIRST)
    run(search, world)
    assert search.fixes()
    assert not world.questions(work.Purpose.REPAIR)


def test_the_review_changes_a_fix_only_for_another_that_is_still_resolved() -> None:
    class Reviewer(World):
        """Renames the limit's neighbour; then breaks the fix, twice; then says it is right."""

        replies = [
            edit("16", "16 /* elements */"),
            edit("16 /* elements */", "word"),
            edit("16 /* elements */", "7"),
            "<approved/>",
        ]

        def _answer(self, question: work.Question, chance: random.Random) -> work.Result:
            if question.purpose is work.Purpose.REVIEW:
                return work.Answer(text=self.replies[len(self.questions(work.Purpose.REVIEW))])
            return super()._answer(question, chance)

    tool = Tool(review=5, turns=30, kernels=9, validate_with=0)
    forest = Forest(trees=1, depth=1, validate_with=0)
    for seed, strategy in ((1, forest.model_copy(update={"review": 4})), (3, tool)):
        world = Reviewer(seed, ["16"])
        search = searched(strategy, world)
        (fix,) = search.fixes()
        node = search.nodes["review"]
        assert (fix.node, node.chosen) == ("review", 1)
        assert "+#define LIMIT 16 /* elements */" in fix.diff
        assert [candidate.problem.split(":")[0] for candidate in node.candidates] == [
            *("", "", "does_not_compile"),
            FIRST.crash.title.split(":")[0],
        ]
        assert node.tried is not None
        assert node.tried.resolved
        assert node.message == "mend it\n\nIt was wrong."
        assert len(world.questions(work.Purpose.REVIEW)) == 4
        (message,) = world.questions(work.Purpose.MESSAGE)
        assert message.values["changed"] == fix.diff
    unreviewed = searched(forest, Reviewer(1, ["16"]))
    assert "review" not in unreviewed.nodes


@pytest.mark.parametrize("last", [False, True])
def test_files_may_be_searched_one_after_the_other(last: bool) -> None:
    texts = {FILE: FIRST.code.files[FILE], "mm/other.c": FIRST.code.files[FILE]}
    if last:
        texts = dict(reversed(texts.items()))
    strategy = Forest(trees=2, depth=1, files="in_turn", cycle=Cycle(hypotheses=1, patches=1))
    world = World(3, ["16"])
    search = Search(strategy, replace(FIRST, code=Code(texts)))
    shown: list[list[str]] = []
    ready = search.ask()
    while ready:
        asked = ready.pop(0)
        if isinstance(asked.work, work.Question):
            shown.append(list(asked.work.values["files"]))
        other = isinstance(asked.work, work.Question) and FILE not in asked.work.values["files"]
        search.tell(asked.name, work.Answer(text="no idea") if other else world.result(asked))
        gone = set(search.dropped())
        ready = [asked for asked in ready if asked.name not in gone] + search.ask()
    assert all(len(asked) == 1 for asked in shown)
    assert shown[0] == list(texts)[:1]
    assert (["mm/other.c"] in shown) == last
    assert search.fixes()[0].node.startswith("f1.t" if last else "f0.t")


class Fixed(World):
    """A model whose hypotheses are a fixed list; all patches do what the hypothesis says."""

    hypotheses = ("7", "8", "9", "16")

    def _answer(self, question: work.Question, chance: random.Random) -> work.Result:
        if question.purpose is work.Purpose.HYPOTHESES:
            tried = {lesson["hypothesis"] for lesson in question.values["lessons"]}
            left = [text for text in self.hypotheses if text not in tried]
            left = left[: question.values["count"]]
            return work.Answer(text="".join(f"<solution>{text}</solution>" for text in left))
        if question.purpose is work.Purpose.PATCH:
            old = limit(question.values["files"][FILE])
            return work.Answer(text=edit(old, question.values["hypothesis"]))
        return super()._answer(question, chance)


RANKED = Cycle(
    questions="together", hypotheses=3, patches=1, repairs=0, rounds=1, summaries="hypothesis"
)


@pytest.mark.parametrize(("further", "asked"), [(None, [3, 1]), (1, [3, 2]), (0, [3, 3, 2, 1])])
def test_hypotheses_of_one_answer_are_tried_one_after_the_other_then_asked_for_again(
    further: int | None, asked: list[int]
) -> None:
    """And no tree is built upon a patch that left the crash as it was."""
    world = Fixed(1, [])
    strategy = Forest(trees=5, depth=3, grow="progress", further=further, cycle=RANKED)
    search = searched(strategy, world)
    assert [fix.node for fix in search.fixes()] == ["t3"]
    assert [node.hypothesis for node in search.nodes.values()] == ["7", "8", "9", "16"]
    assert all(node.parent is None for node in search.nodes.values())
    texts = [result.text for _, result in world.done if isinstance(result, work.Answer)]
    assert [text.count("<solution>") for text in texts if "<solution>" in text] == asked
    lessons = world.questions(work.Purpose.HYPOTHESES)[-1].values["lessons"]
    assert {lesson["hypothesis"] for lesson in lessons} <= {"7", "8", "9"}
    assert all("LIMIT 99" in question.values["files"][FILE] for question in world.questions())
    assert not world.questions(work.Purpose.SUMMARY)


def test_where_the_kernel_crashes_in_another_way_the_tree_goes_on_from_there() -> None:
    class Behind(Fixed):
        """A second crash is behind the first; from there on, 16 is right."""

        hypotheses = ("7", "9", "16")

        def _tried(self, diff: str, chance: random.Random) -> Tried:
            if "+#define LIMIT 7" in diff:
                behind = Crash(title="another crash", report="behind")
                return Tried(verdict=Verdict.OTHER_CRASH, crash=behind)
            return super()._tried(diff, chance)

    world = Behind(1, [])
    strategy = Forest(trees=2, depth=2, branching=2, grow="progress", cycle=RANKED)
    search = searched(strategy, world)
    assert [node.name for node in search.nodes.values()] == ["t0", "t0.0", "t0.1"]
    assert [fix.node for fix in search.fixes()] == ["t0.1"]
    begun, last = (world.questions(node=name)[0] for name in ("t0.0", "t0.1"))
    assert begun.values["report"] == "behind"
    assert "LIMIT 7" in begun.values["files"][FILE]
    assert "LIMIT 7" in last.values["files"][FILE]


def test_a_crash_that_comes_back_is_no_progress() -> None:
    class Swaying(Fixed):
        """Each patch swaps one crash for the other."""

        def _tried(self, diff: str, chance: random.Random) -> Tried:
            even = int(re.findall(r"^\+#define LIMIT (\d+)", diff, re.MULTILINE)[-1]) % 2 == 0
            title = FIRST.crash.title if even else "another crash"
            return Tried(verdict=Verdict.OTHER_CRASH, crash=Crash(title=title, report=title))

    strategy = Forest(trees=1, depth=9, branching=1, grow="progress", cycle=RANKED)
    search = searched(strategy, Swaying(1, []))
    assert [node.name for node in search.nodes.values()] == ["t0", "t0.0"]


def test_patches_are_only_mended_while_no_other_one_compiles() -> None:
    class Broken(World):
        """Of three patches, so many do not compile."""

        broken = 2

        def _answer(self, question: work.Question, chance: random.Random) -> work.Result:
            if question.purpose is work.Purpose.PATCHES:
                new = ["word"] * self.broken + ["7", "8", "9"]
                pieces = [f"<attempt>{edit('99', word)}</attempt>" for word in new[:3]]
                return work.Answer(text="".join(pieces))
            if question.purpose is work.Purpose.REPAIR:
                return work.Answer(text=edit("99", "16"))
            return super()._answer(question, chance)

    cycle = Cycle(questions="together", hypotheses=0, patches=3, mend="needed", rounds=1)
    for broken, repairs in ((0, 0), (2, 0), (3, 1)):
        world = Broken(1, ["7"])
        world.broken = broken
        search = searched(Forest(trees=1, depth=1, cycle=cycle), world)
        assert len(world.questions(work.Purpose.REPAIR)) == repairs
        assert bool(search.fixes()) is bool(repairs)
        (node,) = search.nodes.values()
        problems = [problem for patch in node.candidates for problem in patch.problems]
        assert ("It does not compile: 'word' undeclared" in problems) is bool(broken)


class Elsewhere(World):
    """A model that finds a further file on its third turn."""

    turns, most = 2, 7

    def _answer(self, question: work.Question, chance: random.Random) -> work.Result:
        if question.purpose is not work.Purpose.FILES:
            return super()._answer(question, chance)
        if len(question.turns) < self.turns:
            call = ToolCall(id="1", name="search", arguments={"pattern": "LIMIT"})
            return work.Answer(calls=[call])
        named: list[JsonValue] = ["kernel/../kernel/further.c", FILE, {}, "a", "b", "c", "d"]
        arguments: dict[str, JsonValue] = {
            "files": named[: self.most],
            "explanation": "It is there.",
        }
        return work.Answer(calls=[ToolCall(id="2", name="name_files", arguments=arguments)])


@pytest.mark.parametrize("strategy", [
    Forest(trees=3, grow="progress", cycle=Cycle(looks=3, patches=1)),
    Forest(trees=1, depth=2, cycle=Cycle(looks=3, patches=1)),
    BestFirst(cycles=3, width=1, cycle=Cycle(looks=3, patches=1)),
])  # fmt: skip
def test_further_files_are_searched_for_once_and_are_there_from_then_on(strategy: Strategy) -> None:
    world = Elsewhere(1, ["7", "8"])
    search = searched(strategy, world)
    looks = world.questions(work.Purpose.FILES)
    assert [look.values["files"] for look in looks] == [[FILE]] * 3
    assert "[one turn is left" in next(iter(looks[-1].turns[-1].results.values()))
    others = [asked for asked in world.questions() if asked.purpose is not work.Purpose.FILES]
    assert all(list(asked.values["files"])[:2] == [FURTHER, FILE] for asked in others)
    assert len(others[0].values["files"]) == 4  # not more, however many were named
    assert all(asked.values["explanation"] == "It is there." for asked in others)
    assert [bool(node.further_files) for node in search.nodes.values()].count(True) == 1


def test_the_files_that_a_model_names_take_the_place_of_those_it_was_told() -> None:
    world = Elsewhere(1, ["7"])
    world.most = 1
    search = searched(Forest(trees=1, depth=1, cycle=Cycle(looks=3, patches=1)), world)
    others = [asked for asked in world.questions() if asked.purpose is not work.Purpose.FILES]
    assert all(list(asked.values["files"]) == [FURTHER] for asked in others)
    (node,) = search.nodes.values()
    assert node.further_files == [FURTHER]


def test_a_model_that_looks_for_ever_begins_without_further_files() -> None:
    class Endless(Elsewhere):
        turns = 1000

    world = Endless(1, ["16"])
    search = searched(Forest(trees=1, depth=1, cycle=Cycle(looks=4, patches=1)), world)
    assert len(world.questions(work.Purpose.FILES)) == 4
    assert search.fixes()


@pytest.mark.parametrize(
    ("outcome", "words", "run"),
    [
        (PatchOutcome.COMPILES, "compiles", True),
        (PatchOutcome.OVER_LIMIT, "not known: a limit ended the check: it says why", True),
        (PatchOutcome.NOT_BUILT, "changes nothing: ", False),
        (PatchOutcome.DOES_NOT_COMPILE, "does not compile: it says why", False),
        (PatchOutcome.DOES_NOT_APPLY, "does not apply: it says why", False),
    ],
)
def test_a_plain_agent_is_told_what_a_check_found_and_runs_what_may_compile(
    outcome: PatchOutcome, words: str, run: bool
) -> None:
    line = "#define LIMIT "
    edited: dict[str, JsonValue] = {"file": FILE, "original": f"{line}99"}
    edited["replacement"] = f"{line}16"
    calls = [
        ToolCall(id="1", name="edit", arguments=edited),
        ToolCall(id="2", name="check", arguments={}),
        ToolCall(id="3", name="run_kernel", arguments={}),
    ]
    check = PatchCheck(name="p", outcome=outcome, reason="it says why", seconds=0)
    search, shown = Search(Tool(turns=2), FIRST), ""
    while ready := search.ask():
        (asked,) = ready
        result: work.Result = work.Checked(patches=[check])
        if isinstance(asked.work, work.Question):
            result = work.Answer(calls=[] if asked.work.turns else calls)
            shown = asked.work.turns[-1].results["2"] if asked.work.turns else ""
        elif isinstance(asked.work, work.Try):
            result = Tried(verdict=Verdict.NO_CRASH, obstacles=["it_is_no_fix"])
        elif not isinstance(asked.work, work.Check):
            result = work.Seen(text=FIRST.code.files[FILE])
        search.tell(asked.name, result)
    (node,) = search.nodes.values()
    assert bool(node.runs) is run
    assert shown.startswith(words)


@pytest.mark.parametrize(
    "form",
    [edit("99", "16"), f"--- a/{FILE}\n+++ b/{FILE}\n@@\n-#define LIMIT 99\n+#define LIMIT 16\n"],
    ids=["tags", "diff"],
)
def test_a_patch_in_words_is_made_by_an_agent_with_tools_too(form: str) -> None:
    search, turns = Search(Tool(turns=3), FIRST), []
    while ready := search.ask():
        (asked,) = ready
        if isinstance(asked.work, work.Question):
            turns = asked.work.turns
            result: work.Result = work.Answer(text=[form, "Let me think.", ""][len(turns)])
        else:
            result = World(1, ["16"]).result(asked)
        search.tell(asked.name, result)
    (fix,) = search.fixes()
    assert "+#define LIMIT 16" in fix.diff
    assert [turn.results for turn in turns] == [{"": "edited"}, {}]
    (node,) = search.nodes.values()
    assert "there is no patch" in node.unreadable[0]


def test_an_agent_with_tools_that_has_edited_nothing_is_not_done() -> None:
    line = "#define LIMIT "
    edited: dict[str, JsonValue] = {"file": FILE, "original": f"{line}99"}
    edited["replacement"] = f"{line}16"
    script = [("done", {}), ("edit", edited), ("done", {})]
    search, turns = Search(Tool(turns=9), FIRST), []
    while ready := search.ask():
        (asked,) = ready
        result: work.Result = World(1, ["16"]).result(asked)
        if isinstance(asked.work, work.Question):
            turns = asked.work.turns
            name, arguments = script[len(turns)]
            result = work.Answer(calls=[ToolCall(id="1", name=name, arguments=arguments)])
        search.tell(asked.name, result)
    assert search.fixes()
    assert [turn.results["1"] for turn in turns] == ["error: nothing has been edited yet", "edited"]


@pytest.mark.parametrize(
    "strategy", [Tool(), Forest(trees=1, depth=1, cycle=Cycle(hypotheses=0, patches=1))]
)
def test_a_cycle_says_why_it_got_no_answer_and_no_verdict(strategy: Strategy) -> None:
    searches = Search(strategy, FIRST), Search(strategy, FIRST)
    for search in searches:
        while ready := search.ask():
            result: work.Result = World(1, ["7"], flaky=1.0).result(ready[0])
            if isinstance(ready[0].work, work.Question):
                result = work.Unanswered(reason="answer_unreadable")
                if search is searches[0]:
                    result = work.Answer(text=edit("99", "7"))
            search.tell(ready[0].name, result)
    inconclusive, unanswered = (
        [line for node in search.nodes.values() for line in NodeView.of(node).answers]
        for search in searches
    )
    assert "no verdict: the host went away" in inconclusive
    assert set(unanswered) == {"no answer: answer_unreadable"}


def test_a_price_is_not_known_if_an_answer_was_lost() -> None:
    lost = Spent(lost_calls=1)
    assert (lost.dollars, lost.cost) == (None, "cost unknown")
    both = Spent(calls=2, known_dollars=1, unpriced_calls=1, lost_calls=1)
    assert both.cost == "$1.00 and 2 calls of unknown price"

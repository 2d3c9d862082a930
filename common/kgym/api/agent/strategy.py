"""Strategies: how a fix is searched for. Each is a file `configs/agent/NAME.toml`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api.steps import Strict


class Cycle(Strict):
    """One debug cycle (CrashFixer, section 4): hypotheses, patches, check, build, reproducer."""

    answer: Literal["edits", "diff", "functions"] = Field(
        "edits",
        description="`diff`: a patch as `git diff` writes it (kGym's baseline); `functions`: whole"
        " functions, each in place of the one of its name (RGym, section 2)",
    )
    reasons: bool = Field(True, description="whether each edit comes with its reason")
    hypotheses: int = Field(4, ge=0, le=32, description="0: patches at once, without one")
    reflection: bool = Field(True, description="weigh hypotheses and choose; else the first")
    patches: int = Field(4, ge=1, le=32, description="asked for in a cycle")
    questions: Literal["apart", "together"] = Field(
        "apart",
        description="`together`: one answer holds all hypotheses, weighed and ranked, and one all"
        " patches; else each is asked for alone, as the paper does",
    )
    looks: int = Field(
        0,
        ge=0,
        le=100,
        description="turns in which the model may search the source for further files that the fix"
        " needs, before the first hypothesis; once in a search",
    )
    explore: int = Field(
        0,
        ge=0,
        le=100,
        description="turns in which the model may ask for definitions before it patches, in each"
        " cycle (RGym, section 2); the files that they are in may be changed, too",
    )
    examples: bool = Field(
        False, description="show patches of other crashes of the same class, where there are any"
    )
    cause: bool = Field(
        False, description="show the commit that brought the bug in, where the bug says it"
    )
    select: Literal["first", "consistency"] = Field(
        "consistency", description="which of the patches that compile is built"
    )
    repairs: int = Field(
        1, ge=0, le=10, description="turns to mend edits that do not apply or compile, per patch"
    )
    mend: Literal["all", "needed"] = Field(
        "all", description="`needed`: patches are only repaired while no other one compiles"
    )
    rounds: int = Field(
        2, ge=1, le=10, description="from the hypothesis on, while no patch compiles"
    )
    trace: bool = Field(True, description="show the calls before the crash, where there are any")
    summaries: bool | Literal["hypothesis", "always"] = Field(
        True,
        description="of failed patches, for those that come after; `hypothesis`: none is asked for,"
        " and what the patch supposed is told instead; `always`: also of patches that do not apply,"
        " compile or build",
    )
    temperature: float = Field(0.8, ge=0, le=2, description="of hypotheses and patches")
    judging: float = Field(0.2, ge=0, le=2, description="the temperature of all else")

    @model_validator(mode="after")
    def _fits(self) -> "Cycle":
        if self.questions == "together":
            if self.answer != "edits":
                raise ValueError(
                    "`together` asks for edits: an answer cannot hold several diffs, nor one"
                    " function several times"
                )
            if self.hypotheses > 1 and not self.reflection:
                raise ValueError("`together` ranks hypotheses, which is what `reflection` turns on")
            if self.hypotheses <= 1 and self.patches == 1:
                raise ValueError("`together` wants several hypotheses or patches")
        if self.summaries == "hypothesis" and not self.hypotheses:
            raise ValueError("`summaries` cannot tell the hypothesis where there is none")
        return self


class Searching(Strict):
    """What all strategies have in common."""

    name: str = ""
    description: str = ""
    stop: Literal["branch", "tree", "forest"] = Field(
        "forest", description="what a resolution ends"
    )
    validate_with: int = Field(
        1, ge=0, le=10, description="runs with fresh instances before `resolved` is claimed"
    )
    localisation: Literal["fix", "report", "cause", "bm25", "given"] = Field(
        "report",
        description="where the candidate files come from; `fix`: the developer's (oracle); `cause`:"
        " the report, and the commit that brought the bug in",
    )
    files: Literal["together", "in_turn"] = Field(
        "together",
        description="`in_turn`: search in one candidate file after the other, each anew, the most"
        " likely first, until there is a fix",
    )
    context: Literal["functions", "stack", "files"] = Field(
        "functions",
        description="cut by function what does not fit the window; or show only the functions of"
        " the crash's stacks, those that `cause` names, and what was asked for; or whole files",
    )

    @model_validator(mode="after")
    def _one_file(self) -> "Searching":
        cycle = getattr(self, "cycle", None)
        if self.files == "in_turn" and isinstance(cycle, Cycle) and cycle.looks:
            raise ValueError("`looks` finds further files, `in_turn` takes one file alone")
        return self


class Forest(Searching):
    """Trees of debug cycles (CrashFixer, section 4.3): T trees of depth D with B branches.

    `grow` says what a tree is. As the paper has it (`always`), trees are independent of each other:
    each cycle's children begin with its code and its crash, whatever became of it.

    With `progress`, a tree is one hypothesis. The first tree asks for hypotheses and tries the most
    likely one; the next trees try the `further` ones of the same answer, side by side; then the
    next one asks again, and is told all that failed. A patch that leaves the crash as it was ends
    its tree, and nothing is built upon it. Where the kernel crashes in another way, with which no
    cycle on the way there began, the tree goes on in the same manner: up to `branching` cycles
    begin with that code and that crash.
    """

    kind: Literal["forest"] = "forest"
    trees: int = Field(4, ge=1, le=100)
    depth: int = Field(4, ge=1, le=20)
    branching: int = Field(1, ge=1, le=10)
    branch_at: list[Literal["hypothesis", "patch"]] = Field(
        ["hypothesis"],
        min_length=1,
        description="where each child begins, in turn; for trees that always grow",
    )
    grow: Literal["always", "progress"] = Field(
        "always", description="which cycles have children: all, or those whose crash is another one"
    )
    further: int | None = Field(
        None,
        ge=0,
        le=31,
        description="hypotheses of an answer that are tried side by side when its most likely one"
        " has failed, where trees grow by progress; all if it is not said",
    )
    cycle: Cycle = Cycle()

    @model_validator(mode="after")
    def _grows(self) -> "Forest":
        if self.grow == "always" and self.further is not None:
            raise ValueError('`further` is for `grow = "progress"`: other trees ask themselves')
        if self.grow == "progress" and self.branch_at != ["hypothesis"]:
            raise ValueError("`branch_at` is for trees that always grow")
        return self


class BestFirst(Searching):
    """Debug cycles from the most promising node, whichever tree it is in."""

    kind: Literal["best-first"] = "best-first"
    cycles: int = Field(16, ge=1, le=1000)
    width: int = Field(4, ge=1, le=100, description="nodes that are expanded at the same time")
    depth: int = Field(6, ge=1, le=20)
    cycle: Cycle = Cycle()


class Tool(Searching):
    """A plain agent: one conversation with tools, to its end."""

    kind: Literal["tool"] = "tool"
    turns: int = Field(60, ge=1, le=1000)
    kernels: int = Field(
        10, ge=1, le=1000, description="verdicts of `run_kernel`; the end has one more"
    )
    feedback: bool = Field(True, description="whether `run_kernel` can be called at all")
    trace: bool = True
    temperature: float = Field(0.2, ge=0, le=2)


class Escalate(Searching):
    """Strategies one after the other; each is told what failed before."""

    kind: Literal["escalate"] = "escalate"
    phases: list["Phase"] = Field(min_length=1, max_length=10)


class Phase(Strict):
    """A strategy, tried so many times, each time anew."""

    strategy: "Forest | BestFirst | Tool" = Field(
        discriminator="kind", description="in a file also the name of another strategy"
    )
    times: int = Field(1, ge=1, le=20)


Strategy = Annotated[Forest | BestFirst | Tool | Escalate, Field(discriminator="kind")]


def traced(strategy: Strategy, trace: bool) -> Strategy:
    """Return the strategy, with the calls before a crash shown to the model or not."""
    match strategy:
        case Escalate(phases=phases):
            changed = [
                phase.model_copy(update={"strategy": traced(phase.strategy, trace)})
                for phase in phases
            ]
            return strategy.model_copy(update={"phases": changed})
        case Tool():
            return strategy.model_copy(update={"trace": trace})
        case _:
            cycle = strategy.cycle.model_copy(update={"trace": trace})
            return strategy.model_copy(update={"cycle": cycle})

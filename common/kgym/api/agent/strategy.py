"""Strategies of the search for a fix. Shipped ones are `configs/agent/NAME.toml`."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kgym.api.steps import Strict


class Cycle(Strict):
    """A debug cycle (CrashFixer, section 4): hypotheses, patches, check, build, reproducer."""

    answer: Literal["edits", "diff", "functions"] = Field(
        "edits",
        description="`diff`: a unified diff (kGym's baseline); `functions`: whole functions, which"
        " replace those of the same name (RGym, section 2)",
    )
    reasons: bool = Field(True, description="whether each edit has a reason")
    hypotheses: int = Field(4, ge=0, le=32, description="0: ask for patches without a hypothesis")
    reflection: bool = Field(True, description="weigh hypotheses and choose; else take the first")
    patches: int = Field(4, ge=1, le=32, description="per cycle")
    questions: Literal["apart", "together"] = Field(
        "apart",
        description="`together`: one answer has all hypotheses, weighed and ranked, and one all"
        " patches; `apart`: one question for each, as in the paper",
    )
    looks: int = Field(
        0,
        ge=0,
        le=100,
        description="turns in which the model may search for further files before the first"
        " hypothesis, once in a search",
    )
    explore: int = Field(
        0,
        ge=0,
        le=100,
        description="turns in which the model may ask for definitions before the patch, in each"
        " cycle (RGym, section 2); the fix may change their files, too",
    )
    examples: bool = Field(False, description="show example patches for the class of crash, if any")
    cause: bool = Field(
        False, description="show the commit that introduced the bug, if the bug names it"
    )
    select: Literal["first", "consistency"] = Field(
        "consistency", description="choice among the patches that compile"
    )
    repairs: int = Field(
        1, ge=0, le=10, description="repairs of a patch that does not apply or compile"
    )
    mend: Literal["all", "needed"] = Field(
        "all", description="`needed`: repair patches only while no other one compiles"
    )
    rounds: int = Field(
        2, ge=1, le=10, description="from the hypothesis on, while no patch compiles"
    )
    program: bool = Field(
        False, description="show the program that crashes the kernel, cut to its system calls"
    )
    trace: bool = Field(True, description="show the calls before the crash, if traced")
    summaries: bool | Literal["hypothesis", "always"] = Field(
        True,
        description="of failed patches, for later cycles; `hypothesis`: show the patch's hypothesis"
        " instead of asking for a summary; `always`: also for patches that do not apply, compile or"
        " build",
    )
    temperature: float = Field(0.8, ge=0, le=2, description="of hypotheses and patches")
    judging: float = Field(0.2, ge=0, le=2, description="temperature of other questions")

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
            raise ValueError("`summaries` of `hypothesis` need hypotheses")
        return self


class Searching(Strict):
    """Options of all strategies."""

    name: str = ""
    description: str = ""
    stop: Literal["branch", "tree", "forest"] = Field("forest", description="what a fix ends")
    validate_with: int = Field(
        1, ge=0, le=10, description="further runs on new instances before `resolved` is claimed"
    )
    review: int = Field(
        0, ge=0, le=5, description="rounds of the fix's review; 0: none, nor a commit's message"
    )
    localisation: Literal["fix", "report", "cause", "bm25", "given"] = Field(
        "report",
        description="source of the candidate files; `fix`: the developer's fix (an oracle);"
        " `cause`: the report and the commit that introduced the bug",
    )
    files: Literal["together", "in_turn"] = Field(
        "together",
        description="`in_turn`: a separate search in each candidate file, the most likely first,"
        " until there is a fix",
    )
    context: Literal["functions", "stack", "files"] = Field(
        "stack",
        description="`functions`: cut by function to the window; `stack`: only functions of the"
        " crash's stacks, of `cause`, and those that the model asked for or named; `files`: whole"
        " files",
    )

    @model_validator(mode="after")
    def _one_file(self) -> "Searching":
        # Escalations and plain agents have no cycle.
        cycle = getattr(self, "cycle", None)
        if self.files == "in_turn" and isinstance(cycle, Cycle) and cycle.looks:
            raise ValueError("`looks` finds further files, `in_turn` takes one file alone")
        return self


class Forest(Searching):
    """Trees of debug cycles (CrashFixer, section 4.3): T trees of depth D with B branches.

    With `grow = "always"`, as in the paper, trees are independent, and the children of every cycle
    begin with its code and its crash.

    With `progress`, a tree is one hypothesis. The first tree asks for hypotheses and tries the most
    likely one. The next trees try the `further` ones of the same answer concurrently. Then a tree
    asks again, with all failures in its prompt. A patch that leaves the crash unchanged ends its
    tree. If the kernel crashes in a way that is new on this path, up to `branching` cycles continue
    from that code and crash in the same manner.
    """

    kind: Literal["forest"] = "forest"
    trees: int = Field(4, ge=1, le=100)
    depth: int = Field(4, ge=1, le=20)
    branching: int = Field(1, ge=1, le=10)
    branch_at: list[Literal["hypothesis", "patch"]] = Field(
        ["hypothesis"],
        min_length=1,
        description="start of the children, in turn; for trees that always grow",
    )
    grow: Literal["always", "progress"] = Field(
        "always", description="cycles with children: all, or those with a new crash"
    )
    further: int | None = Field(
        None,
        ge=0,
        le=31,
        description="with `progress`: hypotheses of an answer that are tried concurrently after its"
        " most likely one has failed; null: all",
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
    """Debug cycles from the most promising node of all trees."""

    kind: Literal["best-first"] = "best-first"
    cycles: int = Field(16, ge=1, le=1000)
    width: int = Field(4, ge=1, le=100, description="concurrent cycles")
    depth: int = Field(6, ge=1, le=20)
    cycle: Cycle = Cycle()


class Tool(Searching):
    """A plain agent: one conversation with tools, to its end."""

    kind: Literal["tool"] = "tool"
    turns: int = Field(60, ge=1, le=1000)
    kernels: int = Field(
        10, ge=1, le=1000, description="verdicts of `run_kernel`, besides a final one"
    )
    feedback: bool = Field(True, description="whether the model can call `run_kernel`")
    trace: bool = True
    temperature: float = Field(0.2, ge=0, le=2)


class Escalate(Searching):
    """Strategies in sequence; each receives the failures of earlier ones."""

    kind: Literal["escalate"] = "escalate"
    phases: list["Phase"] = Field(min_length=1, max_length=10)


class Phase(Strict):
    """A strategy, run up to `times` times from the start."""

    strategy: "Forest | BestFirst | Tool" = Field(
        discriminator="kind", description="in a file also a strategy's name"
    )
    times: int = Field(1, ge=1, le=20)


Strategy = Annotated[Forest | BestFirst | Tool | Escalate, Field(discriminator="kind")]


def traced(strategy: Strategy, trace: bool) -> Strategy:
    """Return the strategy with `trace` set in all its parts."""
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

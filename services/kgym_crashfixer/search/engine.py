"""Plans: generators that yield work and receive its results.

A plan yields a piece of work, or `together(...)` of several plans, and continues with the result.
The engine offers the work that can be done now (`ask`) and passes results on (`tell`). The same
plans with the same results in the same order ask for the same work under the same names.

Generators let a debug cycle read like its section of the paper. Coroutines would need an event
loop, and could not be closed at an arbitrary point.
"""

from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
# A generator that returns the plan's result.
Plan = Generator["Work | Together", Any, T]


class Work(Protocol):
    """A piece of work for the caller of the engine."""

    @property
    def word(self) -> str:
        """Its part of the work's name, such as `hypothesis`."""


@dataclass(frozen=True, slots=True)
class Together:
    """Plans that run concurrently, by name."""

    plans: Mapping[str, Plan[Any]]
    enough: Callable[[Any], bool]


def together(
    plans: Mapping[str, Plan[T]], enough: Callable[[T], bool] = lambda _: False
) -> Generator[Together, Any, dict[str, T]]:
    """Run plans concurrently; return their results by name, in the order of `plans`.

    The first result that is `enough` stops the remaining plans, whose results are then missing.
    """
    results: dict[str, T] = yield Together(plans, enough)
    return results


def single(work: Work) -> Plan[Any]:
    """Return a plan of one piece of work."""
    return (yield work)


@dataclass(slots=True, eq=False)
class _Fiber:
    """A running plan."""

    path: str
    plan: Plan[Any]
    parent: "_Fiber | None"
    name: str
    """Its name in the parent's group."""
    asked: int = 0
    """Number of pieces of work and groups that it has waited for."""
    group: Together | None = None
    children: dict[str, "_Fiber"] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    waits: str | None = None
    """Name of the work that it waits for."""
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Asked:
    """A piece of work to do. `name` is unique, and the same in another run of the plan."""

    name: str
    work: Any


class Engine(Generic[T]):
    """The execution of a plan."""

    def __init__(self, plan: Plan[T]) -> None:
        # The plan's result, once it is done.
        self.result: T | None = None
        self.done = False
        self._waiting: dict[str, _Fiber] = {}
        self._new: dict[str, Asked] = {}
        self._dropped: list[str] = []
        self._ready: deque[tuple[_Fiber, Any]] = deque()
        self._root = _Fiber("", plan, None, "")
        # It begins with the first `ask` or `tell`.
        self._ready.append((self._root, None))

    def ask(self) -> list[Asked]:
        """Return the work that can begin now, each piece once."""
        self._go()
        new = list(self._new.values())
        self._new.clear()
        return new

    def tell(self, name: str, result: object) -> None:
        """Pass the result of a piece of work; results of dropped work are ignored."""
        self._go()
        self._new.pop(name, None)
        fiber = self._waiting.pop(name, None)
        if fiber is not None:
            fiber.waits = None
            self._ready.append((fiber, result))
            self._go()

    def dropped(self) -> list[str]:
        """Return the names of begun work that became unnecessary since the last call."""
        dropped, self._dropped = self._dropped, []
        return dropped

    def stop(self) -> None:
        """Drop all running work; the plan has no result."""
        if not self.done:
            self._close(self._root)
            self.done = True

    def _go(self) -> None:
        """Advance all ready plans until each waits for work."""
        while self._ready:
            fiber, value = self._ready.popleft()
            if fiber.closed:  # by a sibling, while it waited in the queue
                continue
            try:
                wanted = fiber.plan.send(value)
            except StopIteration as stop:
                self._end(fiber, stop.value)
            else:
                self._want(fiber, wanted)

    def _want(self, fiber: _Fiber, wanted: "Work | Together") -> None:
        fiber.asked += 1
        if isinstance(wanted, Together):
            fiber.group, fiber.results = wanted, {}
            if not wanted.plans:
                self._ready.append((fiber, {}))
                return
            # A plan may have several groups; the number keeps names of work unique.
            prefix = f"{fiber.path}{fiber.asked}." if fiber.asked > 1 else fiber.path
            for name, plan in wanted.plans.items():
                child = _Fiber(f"{prefix}{name}/", plan, fiber, name)
                fiber.children[name] = child
                self._ready.append((child, None))
            return
        name = f"{fiber.path}{fiber.asked}-{wanted.word}"
        self._waiting[name] = fiber
        self._new[name] = Asked(name, wanted)
        fiber.waits = name

    def _end(self, fiber: _Fiber, result: Any) -> None:
        parent = fiber.parent
        if parent is None:
            self.result, self.done = result, True
            return
        group = parent.group
        assert group is not None
        parent.results[fiber.name] = result
        del parent.children[fiber.name]
        if group.enough(result):
            for child in list(parent.children.values()):
                self._close(child)
            parent.children.clear()
        if not parent.children:
            ordered = {name: parent.results[name] for name in group.plans if name in parent.results}
            self._ready.append((parent, ordered))

    def _close(self, fiber: _Fiber) -> None:
        for child in list(fiber.children.values()):
            self._close(child)
        fiber.children.clear()
        if fiber.waits is not None:
            del self._waiting[fiber.waits]
            # Work that was never handed out need not be cancelled.
            if self._new.pop(fiber.waits, None) is None:
                self._dropped.append(fiber.waits)
            fiber.waits = None
        fiber.closed = True
        fiber.plan.close()

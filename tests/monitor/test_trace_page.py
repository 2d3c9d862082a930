"""The page of a trace: what is nested, how time is shortened, what is unfolded, and its bounds."""

import io
import itertools
import re
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from playwright.sync_api import Browser, Page, expect

from kgym.api.jobs import Artifact, JobView
from kgym.api.steps import TraceCall, TracedFunction, TracePart
from kgym.client import Client
from kgym.errors import UserError
from kgym.trace import trace_files
from kgym.trace.records import Function, Trace
from kgym_cli.platforms.embedded_platform import Platform
from kgym_monitor.traces import thread_records
from kgym_monitor.traces.call_list import LIST, CallList, Lister, Part
from kgym_monitor.traces.call_tree import DEPTH, Node, tree
from kgym_monitor.traces.held_traces import MOST_BYTES, HeldTrace, HeldTraces
from kgym_monitor.traces.idle_axis import IDLE_MOST, Axis
from kgym_monitor.traces.trace_query import TraceQuery
from tests.cli.worked import working
from tests.conftest import NEARBY
from tests.demo import traced_calls
from tests.demo.monitored import monitored
from tests.demo.screenshots import PATIENCE
from tests.monitor import traced
from tests.monitor.conftest import EACH_LOOK, Look, Reader, barriers
from tests.refused import refused
from tests.tables import json_rows

expect.set_options(timeout=PATIENCE)

MOMENTS = st.lists(st.integers(0, 1 << 62), max_size=60).map(sorted)


# --- the axis -----------------------------------------------------------------------------


def axis(times: list[int], first: int | None = None, last: int | None = None) -> Axis:
    first = times[0] if first is None else first
    return Axis.of(np.array(times, np.uint64), first, times[-1] if last is None else last)


@settings(deadline=None)
@given(MOMENTS, st.integers(0, 1 << 62), st.integers(0, 1 << 62))
def test_an_axis_keeps_the_order_and_is_as_long_as_its_window(
    times: list[int], first: int, second: int
) -> None:
    first, last = min(first, second), max(first, second)
    inside = [time for time in times if first <= time <= last]
    made = Axis.of(np.array(inside, np.uint64), first, last)
    places = made.places_of(np.array(inside, np.uint64)).tolist()
    assert places == sorted(places)
    assert all(0 <= place <= 1 for place in places)
    assert (made.first, made.last) == (first, max(last, first + 1))
    assert (made.place(first - 1), made.place(made.last + 1)) == (0, 1)
    ends = [(part.start, part.end) for part in made.stretches]
    assert all(end == start for (_, end), (start, _) in itertools.pairwise(ends))
    assert sum(part.idle for part in made.stretches) <= IDLE_MOST
    idle = [part for part in made.stretches if part.idle]
    assert not any(part.start < time < part.end for part in idle for time in inside)


@settings(deadline=None)
@given(MOMENTS.filter(bool), st.floats(0, 1))
@example([0, 2**54 - 1], 1.0)
def test_a_place_on_an_axis_has_a_time_and_that_has_the_place(
    times: list[int], place: float
) -> None:
    made = axis(times)
    time = made.time(place)
    assert made.first <= time <= made.last
    nearest = (made.place(max(made.first, time - 1)), made.place(min(made.last, time + 1)))
    slack = 1e-6
    assert nearest[0] - slack <= place <= nearest[1] + slack or made.last - made.first > 1 << 50


def test_a_long_pause_takes_little_room() -> None:
    busy = [n * 1000 for n in range(20)]
    made = axis([*busy, *(10**12 + n for n in busy)])
    (pause,) = [stretch for stretch in made.stretches if stretch.idle]
    assert (pause.start, pause.end) == (busy[-1], 10**12)
    assert made.place(10**12) - made.place(busy[-1]) < 0.05
    assert 0.4 < made.place(busy[-1]) < 0.6


def test_records_that_follow_one_another_evenly_leave_no_pause() -> None:
    assert not any(stretch.idle for stretch in axis([n * 10**9 for n in range(10)]).stretches)


def test_zooming_goes_in_and_back_out() -> None:
    whole = (0, 1_000_000)
    made = axis([0, 500_000, 1_000_000])
    query = TraceQuery(thread=7)
    zooms = query.zooms(made, whole)
    assert (zooms["all"], zooms["out"], zooms["left"], zooms["right"]) == (None,) * 4
    inner = zooms["in"]
    assert inner is not None
    assert inner.window(*whole) == (250_000, 750_000)
    assert inner.thread == 7
    small = axis([250_000, 750_000])
    back = inner.zooms(small, whole)["out"]
    assert back is not None
    assert back.window(*whole) == whole


# --- the tree -----------------------------------------------------------------------------


def calls(text: str, frames: dict[str, int] | None = None) -> list[TraceCall]:
    """`sys_a b c*3 …5 d`: a system call, b, three times c, five records left out, then d."""
    result, omitted = list[TraceCall](), 0
    for time_, word in enumerate(text.split()):
        if word.startswith("…"):
            omitted = int(word[1:])
            continue
        name, _, count = word.partition("*")
        full = f"__x64_{name}" if name.startswith("sys_") else name
        frame = (frames or {}).get(name)
        result.append(
            TraceCall(
                pattern=[TracedFunction(file="fs/a.c", name=name) for name in full.split("+")],
                count=int(count or 1),
                time=10 * time_,
                cpu=0,
                part=TracePart.MATCH,
                anchor=frame is not None,
                frame=frame,
                omitted=omitted,
            )
        )
        omitted = 0
    return result


def drawn(node: Node) -> str:
    """The tree in brackets."""
    shown = []
    for child in node.children:
        name = {"gap": f"…{child.count}"}.get(child.kind, child.name.removeprefix("__x64_"))
        name += f"*{child.count}" if child.count > 1 and child.kind == "repeat" else ""
        shown.append(name + (f"[{drawn(child)}]" if child.children else ""))
    return " ".join(shown)


def test_calls_lie_within_system_calls() -> None:
    assert drawn(tree(calls("a sys_x b c sys_y d"))) == "a sys_x[b c] sys_y[d]"


def test_calls_lie_within_the_frames_of_the_stack() -> None:
    root = tree(calls("a sys_x f b g c sys_y d", {"sys_x": 2, "f": 1, "g": 0}))
    assert drawn(root) == "a sys_x[f[b g[c]]] sys_y[d]"


def test_what_repeats_is_one_node_with_its_pattern() -> None:
    assert drawn(tree(calls("a*3 b+c*4"))) == "a*3 2 calls*4[b c]"


def test_what_is_left_out_is_told_where_it_was() -> None:
    assert drawn(tree(calls("f …5 b", {"f": 0}))) == "f[…5 b]"


def test_a_function_that_is_only_called_like_a_system_call_is_none() -> None:
    plain = [call.model_copy(update={"pattern": [TracedFunction(file=None, name=name)]})
             for call, name in zip(calls("a b"), ("sys_imageblit", "f"), strict=True)]  # fmt: skip
    assert [node.name for node in tree(plain).children] == ["sys_imageblit", "f"]


def test_a_call_took_at_most_until_the_next_one_outside_it() -> None:
    sys_x, sys_y = tree(calls("sys_x a b sys_y")).children
    assert (sys_x.until, sys_y.until) == (30, None)
    assert [node.until for node in sys_x.children] == [20, 30]


def test_before_a_gap_nothing_is_known_of_when_a_call_ended() -> None:
    first, gap, _ = tree(calls("a …5 b")).children
    assert (first.until, gap.time, gap.until) == (None, 0, 20)


WORDS = st.lists(
    st.sampled_from(["a", "b*3", "sys_x", "sys_y", "f", "g", "a+b*2", "…4"]), max_size=80
)


@settings(deadline=None)
@given(WORDS)
def test_a_tree_has_every_call_once_and_in_order(words: list[str]) -> None:
    asked = calls(" ".join(words), {"f": 1, "g": 0})
    nodes = list(tree(asked).walk())
    timed = [node for node in nodes if node.timed and node.kind != "gap"]
    assert [node.time for node in timed] == [node.time for node in asked]
    assert [node.number for node in nodes] == list(range(1, len(nodes) + 1))
    assert all(len(node.path) <= DEPTH for node in nodes)
    for node in timed:
        assert node.until is None or node.until >= node.time
        assert all(node.time <= child.time for child in node.children)


def test_a_stack_of_any_depth_makes_a_tree_of_bounded_depth() -> None:
    names = [f"f{n}" for n in range(10_000)]
    root = tree(calls(" ".join(names), {name: 10_000 - n for n, name in enumerate(names)}))
    assert max(len(node.path) for node in root.walk()) < DEPTH


# --- the list -----------------------------------------------------------------------------


def lister(root: Node, words: str = "") -> Lister:
    made = axis([node.time for node in root.walk()] or [0])
    return Lister(root, made, words, lambda part: f"{part}", gap=lambda _: None)


def rows(shown: CallList) -> int:
    return sum(1 + (rows(row.within) if row.within else 0) for row in shown.rows)


@pytest.mark.thorough
@settings(deadline=None)
@given(WORDS.map(lambda words: words * 40))
def test_all_of_a_list_is_reached_part_by_part(words: list[str]) -> None:
    root = tree(calls(" ".join(words)))
    made = lister(root)
    first, seen = 0, list[int]()
    while True:
        shown = made.list(Part(0, first))
        assert rows(shown) <= 700
        seen += [row.node.number for row in shown.rows]
        first += len(shown.rows)
        if shown.later is None:
            break
        made = lister(root)
    assert seen == [node.number for node in root.children]


def test_a_list_begins_near_the_anchor_and_leads_back() -> None:
    root = tree(calls(" ".join(["a"] * 500 + ["f"] + ["b"] * 500), {"f": 0}))
    shown = lister(root).list(Part())
    assert shown.earlier is not None
    assert shown.earlier.count == 450
    assert any(row.node.anchor for row in shown.rows)
    before = lister(root).list(Part(0, 350, 450, back=True))
    assert (len(before.rows), before.later) == (LIST, None)


def test_marked_calls_are_unfolded() -> None:
    shown = lister(tree(calls("sys_x a needle sys_y b")), "NEEDLE").list(Part())
    assert [row.open for row in shown.rows] == [True, False]


# --- records ------------------------------------------------------------------------------


def whole(count: int, threads: int = 5) -> Trace:
    """A trace of so many records, of threads that take turns."""
    random = np.random.default_rng(7)
    functions = tuple(Function(f"fs/file{n % 9}.c", f"function_{n}") for n in range(300))
    return Trace(
        time=np.cumsum(random.integers(100, 3000, count)).astype(np.uint64),
        cpu=np.zeros(count, np.int16),
        pid=np.repeat(random.integers(0, threads, count // 20 + 1), 20)[:count].astype(np.int32),
        function=random.integers(0, 300, count).astype(np.int32),
        counter=np.arange(count, dtype=np.uint32),
        functions=functions,
        tasks={0: "repro"},
    )


def test_the_records_of_a_thread_are_read_part_by_part() -> None:
    trace = whole(5000)
    window = (int(trace.time[100]), int(trace.time[4000]))
    own = int((trace.pid[100:4001] == 2).sum())
    first, seen = 0, 0
    while first < own:
        records = thread_records.thread_records(trace, 2, window, first=first, frames={})
        assert (records.first, records.total) == (first, own)
        seen += sum(len(call.pattern) * call.count for call in records.calls)
        first = records.end
    assert seen == own
    back = thread_records.thread_records(trace, 2, window, end=-1, frames={})
    assert (back.end, back.calls[-1].time <= window[1]) == (own, True)


def test_activity_counts_every_record_once() -> None:
    trace = whole(5000)
    made = Axis.of(trace.time, int(trace.time[0]), int(trace.time[-1]))
    held = HeldTrace.of(trace)
    counts = thread_records.counts(held, (made.first, made.last), most=3, also=[99])
    assert next(iter(counts)) == 99
    assert (len(counts), counts[99]) == (3, 0)
    pids = [4, 99, 0, 2, 1, 3]
    counts = thread_records.activity(trace, made, pids, 50)
    assert counts.sum() == 5000
    assert counts.sum(axis=1).tolist() == [int((trace.pid == pid).sum()) for pid in pids]


def test_functions_are_found_with_their_first_call() -> None:
    trace = whole(5000)
    window = (int(trace.time[1000]), int(trace.time[-1]))
    functions = {
        function.name: function for function in thread_records.find(trace, "FUNCTION_29", window)
    }
    assert set(functions) == {"function_29", *(f"function_29{n}" for n in range(10))}
    at = 1000 + np.flatnonzero(trace.function[1000:] == 290)
    function_290 = functions["function_290"]
    assert (function_290.count, function_290.time, function_290.pid) == (
        len(at),
        trace.time[at[0]],
        trace.pid[at[0]],
    )


@pytest.mark.thorough
def test_millions_of_records_are_looked_at_quickly(tmp_path: Path) -> None:
    trace = whole(3_000_000)
    trace_files.save(trace, tmp_path / "trace.npz")
    with (tmp_path / "trace.npz").open("rb") as file:
        start = time.process_time()
        held = HeldTrace.of(trace_files.mapped(file))
    window = int(trace.time[0]), int(trace.time[-1])
    made = Axis.of(held.trace.time, *window)
    thread_records.activity(held.trace, made, [0, 1, 2], 100)
    records = thread_records.thread_records(held.trace, 0, window, first=0, frames={})
    assert len(records.calls) <= thread_records.CALLS
    assert time.process_time() - start < 10


def archive(**files: bytes) -> io.BytesIO:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as packed:
        for name, content in files.items():
            packed.writestr(f"{name}.npy", content)
    return made


def columns(about: bytes, **changed: np.ndarray) -> dict[str, bytes]:  # type: ignore[type-arg]
    columns = {name: np.zeros(3, kind) for name, kind in Trace.COLUMNS}
    columns |= {"about": np.frombuffer(about, np.uint8)} | changed
    packed = {}
    for name, column in columns.items():
        file = io.BytesIO()
        np.lib.format.write_array(file, column, allow_pickle=False)
        packed[name] = file.getvalue()
    return packed


ABOUT = b'{"functions": [[null, "f"]], "tasks": [], "lost": 0, "notes": []}'
BACKWARD = np.array([3, 2, 1], np.uint64)


@pytest.mark.attack
@pytest.mark.parametrize(
    ("about", "changed"),
    [
        (ABOUT, {"time": BACKWARD}),
        (ABOUT, {"time": np.zeros((3, 1), np.uint64)}),
        (ABOUT, {"time": np.zeros(4, np.uint64)}),
        (ABOUT, {"pid": np.zeros(3, np.int64)}),
        (ABOUT, {"function": np.ones(3, np.int32)}),
        (b"[" * 100_000, {}),
        (b"{}", {}),
        (ABOUT.replace(b'"f"', b'"\\ud800"'), {}),
        (ABOUT.replace(b'"lost": 0', b'"lost": 1e999'), {}),
        (ABOUT.replace(b"[null", b"[[null"), {}),
        (ABOUT + b" " * trace_files.MOST_ABOUT, {}),
    ],
)
def test_a_trace_that_is_wrong_is_refused(
    tmp_path: Path, about: bytes, changed: dict[str, np.ndarray]  # type: ignore[type-arg]
) -> None:  # fmt: skip
    path = tmp_path / "trace.npz"
    path.write_bytes(archive(**columns(about, **changed)).getvalue())
    with path.open("rb") as file, pytest.raises(UserError, match="not a trace"):
        trace_files.mapped(file)


def _column(header: str) -> bytes:
    """Return a column with this header, and three numbers."""
    padded = header.encode().ljust(-(-len(header) // 64) * 64 + 53) + b"\n"
    return b"\x93NUMPY\1\0" + len(padded).to_bytes(2, "little") + padded + bytes(24)


@pytest.mark.attack
@pytest.mark.filterwarnings("ignore:Reading `.npy`", "ignore:overflow")  # of NumPy
@pytest.mark.parametrize(
    "header",
    [
        "{'descr': (",
        "'''",
        "(" * 5000,
        "-" * 9000 + "1",
        "{'descr': (), 'fortran_order': False, 'shape': (3,)}",
        "{'descr': [()], 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '|O', 'fortran_order': False, 'shape': (3,)}",
        "{'descr': '<u8', 'fortran_order': False, 'shape': (-1,)}",
        "{'descr': '<u8', 'fortran_order': False, 'shape': (True,)}",
        "{'descr': '<u8', 'fortran_order': False, 'shape': (4294967296,)}",
        "{'descr': '<u8', 'fortran_order': False, 'shape': (1152921504606846975,)}",
        "{'descr': '<u8', 'fortran_order': False, 'shape': (999999999999999999999999,)}",
    ],
    ids=lambda header: header[:60],
)
def test_a_forged_header_of_a_column_is_refused(tmp_path: Path, header: str) -> None:
    path = tmp_path / "trace.npz"
    path.write_bytes(archive(**columns(ABOUT) | {"time": _column(header)}).getvalue())
    with refused("bad_trace"):
        trace_files.load(path)
    with path.open("rb") as file, refused("bad_trace"):
        trace_files.mapped(file)


@pytest.mark.attack
def test_a_trace_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trace.npz"
    content = archive(**columns(ABOUT)).getvalue()
    for end in (0, 10, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:end])
        with path.open("rb") as file, pytest.raises(UserError, match="not a trace"):
            trace_files.mapped(file)
    # A column whose header says that it is longer than the file.
    path.write_bytes(content.replace(b"'shape': (3,)", b"'shape': (9" + b"9,)"))
    with path.open("rb") as file, pytest.raises(UserError, match="not a trace"):
        trace_files.mapped(file)


# --- the page -----------------------------------------------------------------------------


@dataclass(frozen=True)
class TraceSite:
    """A monitor, and a job with a trace."""

    url: str
    client: Client
    job: JobView

    @property
    def path(self) -> str:
        return f"/jobs/{self.job.id}/steps/2/trace"

    def get(self, query: str = "", path: str | None = None) -> httpx.Response:
        address = f"{self.url}{path or self.path}{query}"
        return httpx.get(address, **NEARBY)


def serving(
    folder: Path, made: list[traced_calls.Call], report: str = traced_calls.REPORT, **spec: object
) -> Iterator[TraceSite]:
    with (
        Platform(folder, work=False) as platform,
        working(platform, folder, traced.answers(made, report), traced.REAL),
        monitored(platform.url) as url,
        Client(platform.url) as client,
    ):
        job = client.wait(client.submit(traced.traced_job(**spec)).id)
        assert job.state == "succeeded", job.steps[-1].failure
        yield TraceSite(url, client, job)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TraceSite]:
    yield from serving(tmp_path_factory.mktemp("traced"), traced_calls.crash(before=3000))


def words(answer: httpx.Response) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", answer.text).split())


@pytest.mark.thorough
def test_a_trace_is_found_from_its_job(traces: TraceSite) -> None:
    answer = traces.get(path=f"/jobs/{traces.job.id}/trace", query="?function=a")
    assert (answer.status_code, answer.headers["location"]) == (303, traces.path + "?function=a")
    assert traces.path in traces.get(path=f"/jobs/{traces.job.id}", query="?step=2").text
    for path in (
        "/jobs/999/trace",
        f"/jobs/{traces.job.id}/steps/0/trace",
        "/jobs/1/steps/9/trace",
    ):
        assert traces.get(path=path).status_code == 404


def test_the_minimal_trace_is_shown_with_its_stack(traces: TraceSite) -> None:
    text = words(traces.get())
    assert "3 of 3 frames" in text
    order = [
        "__x64_sys_ioctl on the stack, frame 2",
        "pipe_ioctl on the stack, frame 1",
        "6\N{MULTIPLICATION SIGN} watch_queue_note",
        "watch_queue_set_filter on the stack, frame 0",
        "__x64_sys_close system call",
    ]
    assert [name for name in order if name not in text] == []
    assert sorted(order, key=text.index) == order
    assert "1 pause" in text or "pauses of" in text


def test_the_address_says_what_is_shown(traces: TraceSite) -> None:
    text = traces.get("?function=memdup&thread=71").text
    assert "<mark>memdup_user</mark>" in text
    assert "1 call marked" in words(traces.get("?function=memdup"))
    inner = re.search(r'data-zoom="in" href="([^"]+)"', text)
    assert inner is not None
    zoomed = traces.get(path=inner[1].replace("&amp;", "&"))
    assert zoomed.status_code == 200
    assert 'data-zoom="all"' in zoomed.text
    assert 'value="memdup"' in zoomed.text


def test_who_zooms_is_sent_what_changes_alone(traces: TraceSite) -> None:
    address = f"{traces.url}{traces.path}?all=yes"
    answer = httpx.get(address, headers={"HX-Request": "true"}, timeout=60, trust_env=False)
    assert re.match(r'\s*<div id="trace">', answer.text)
    assert "<script" not in answer.text


def parts(text: str) -> list[str]:
    return [address.replace("&amp;", "&") for address in re.findall(r'data-part="([^"]+)"', text)]


def test_all_records_are_shown_by_thread(traces: TraceSite) -> None:
    answer = traces.get("?all=yes")
    text = words(answer)
    assert "kworker (200) 40 records" in text
    assert "watch_queue_set_filter on the stack, frame 0" in text
    (folded,) = [address for address in parts(answer.text) if "of=thread-201" in address]
    assert "worker_1" in traces.get(path=folded).text
    text = words(traces.get("?all=yes&function=worker_5"))
    assert "worker_5 kernel/workqueue.c 6" in text


def test_what_was_left_out_is_unfolded_from_all_records(traces: TraceSite) -> None:
    (earlier,) = [address for address in parts(traces.get().text) if "end=-1" in address]
    text = traces.get(path=earlier).text
    assert "create_pipe_files" in text
    more = parts(text)[0]
    assert re.search("step_[0-9]+", traces.get(path=more).text)


@pytest.mark.parametrize(("query", "status"), json_rows(__file__, "wrong_trace_queries.jsonl"))
def test_what_is_wrong_is_a_page_that_says_so(traces: TraceSite, query: str, status: int) -> None:
    answer = traces.get(query)
    assert answer.status_code == status
    assert "<b>" not in answer.text
    assert not re.search(r"<style| style=| on[a-z]+=|Traceback", answer.text)


@pytest.mark.thorough
def test_a_long_trace_is_a_short_page(tmp_path: Path) -> None:
    made = traced_calls.crash(before=100_000, others=3)
    for served in serving(tmp_path, made, limit=10_000, past_repeats=True):
        for query in ("", "?all=yes", "?function=step_5", "?all=yes&function=step_5"):
            began = time.process_time()
            answer = served.get(query)
            took = time.process_time() - began
            assert answer.status_code == 200
            assert len(answer.content) < 1_000_000, query
            assert answer.text.count("<li") < 1500
            assert took < 10, f"{query}: {took:.1f} s"


def test_a_trace_whose_file_is_too_large_says_so(traces: TraceSite) -> None:
    large = Artifact(name="trace.npz", size=MOST_BYTES + 1, sha256="0" * 64, key="x")
    with pytest.raises(UserError, match="download it"):
        HeldTraces().look(None, (1, 2), large, lambda held: held).send(None)  # type: ignore[arg-type]


# --- in a browser -------------------------------------------------------------------------


@pytest.fixture
def reading(browser: Browser, traces: TraceSite) -> Iterator[Page]:
    """A reader's page of the trace, which has to be without a fault."""
    with Reader(browser, traces.url) as reader:
        yield reader.open(traces.path)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_reader_zooms_by_keys_and_buttons_and_goes_back(reading: Page) -> None:
    ruler = reading.locator("#axis-help")
    whole = ruler.inner_text()
    reading.locator("#axis").focus()
    reading.keyboard.press("+")
    expect(reading).to_have_url(re.compile("from=.*to="))
    expect(ruler).not_to_have_text(whole)
    expect(reading.locator("#axis")).to_be_focused()
    inner = ruler.inner_text()
    reading.reload()
    expect(ruler).to_have_text(inner)
    reading.locator("#axis").focus()
    reading.keyboard.press("0")
    expect(ruler).to_have_text(whole)
    reading.get_by_label("Zoom in").click()
    expect(ruler).to_have_text(inner)
    reading.go_back()
    expect(ruler).to_have_text(whole)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_reader_zooms_by_dragging(reading: Page) -> None:
    box = reading.locator(".ruler").bounding_box()
    assert box is not None
    reading.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 10)
    reading.mouse.down()
    reading.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 10, steps=4)
    reading.mouse.up()
    expect(reading).to_have_url(re.compile("from=.*to="))
    expect(reading.locator("[data-zoom=out]")).to_be_visible()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_reader_unfolds_what_was_left_out_and_other_threads(reading: Page) -> None:
    reading.get_by_role("button", name="earlier calls").click()
    expect(reading.locator("#trace")).to_contain_text("create_pipe_files")
    reading.get_by_role("link", name="All records").click()
    other = reading.locator("details.thread", has_text="kworker (201)")
    expect(other).not_to_have_attribute("open", "")
    other.locator("summary").first.focus()
    reading.keyboard.press("Enter")
    expect(other).to_contain_text("worker_1")
    expect(reading).to_have_url(re.compile("thread=201"))
    reading.reload()
    expect(other.locator("li").first).to_contain_text("worker_")
    reading.keyboard.press("Tab")
    other.locator("summary").first.focus()
    reading.keyboard.press("ArrowLeft")
    expect(other.locator("li").first).to_be_hidden()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_reader_finds_a_function(reading: Page) -> None:
    reading.get_by_label("Function", exact=True).fill("filp_close")
    reading.keyboard.press("Enter")
    expect(reading.get_by_text("1 call marked")).to_be_visible()
    expect(reading).to_have_url(re.compile("function=filp_close"))
    reading.get_by_label("Next marked call").click()
    expect(reading.locator("li.hit > .line")).to_be_focused()
    expect(reading.locator("li.hit mark")).to_be_visible()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("look", EACH_LOOK)
def test_the_page_is_accessible(browser: Browser, traces: TraceSite, look: Look) -> None:
    with Reader(browser, traces.url, look) as reader:
        for query in ("?function=watch", "?all=yes&function=watch", "?function=none&from=1"):
            page = reader.open(traces.path + query)
            assert barriers(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") <= look.width


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_is_hostile_is_shown_as_text(browser: Browser, tmp_path: Path) -> None:
    report = traced_calls.REPORT.replace("repro/71", "<b>x/71").replace("Comm: repro", "Comm: <b>x")
    made = [
        traced_calls.Call(
            call.time,
            call.name,
            call.file.replace("fs/", "<img/src=x/onerror=alert(1)>/"),
            call.pid,
            "<b>x",
        )
        for call in traced_calls.crash()
    ]  # fmt: skip
    for site in serving(tmp_path, made, report):
        with Reader(browser, site.url) as reader:
            for query in ("", "?all=yes", "?function=%3Cb%3E", "?all=yes&function=%3Cimg"):
                page = reader.open(site.path + query)
                expect(page.locator("#trace")).to_contain_text("<b>x (71)")
                assert page.locator("main :is(b, img)").count() == 0
            expect(page.locator("#trace")).to_contain_text("<img")

// The page of a trace: zoom by buttons, keys and dragging, calls that are loaded when they are
// unfolded, and a way through the marked ones. What is shown stands in the address.
const root = () => document.getElementById("trace");
const KEYS = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all" };
const LEAST = 6; // pixels that a drag takes

// Returns a part of a page as the server renders it for this header; null if it refuses to.
async function part(address) {
  const answer = await fetch(address, { headers: { "HX-Request": "true" } });
  return answer.ok && !answer.redirected ? answer.text() : null;
}

function put(text, target, swap) {
  return htmx.swap({ text, target, swap, sourceElement: document.body });
}

async function unfold(address, target, swap) {
  const text = await part(address).catch(() => null);
  if (text === null) target.textContent = "This could not be loaded: reload the page.";
  else await put(text, target, swap);
}

let wanted = null; // the address that is to be shown next
let busy = false;

// Shows another view of the trace; of several views requested meanwhile, only the last.
async function show(address, { push = true } = {}) {
  if (push && address !== location.href) history.pushState(null, "", address);
  wanted = address;
  if (busy) return;
  busy = true;
  const inAxis = document.activeElement?.closest("#axis");
  root().setAttribute("aria-busy", "true");
  try {
    while (wanted) {
      const now = wanted;
      wanted = null;
      const text = await part(now);
      if (text === null) return location.reload(); // to a page that says what is wrong
      await put(text, root(), "outerHTML");
    }
  } finally {
    busy = false;
    root()?.removeAttribute("aria-busy");
  }
  if (inAxis) document.getElementById("axis")?.focus({ preventScroll: true });
}

// --- unfolding --------------------------------------------------------------------------------

document.addEventListener("toggle", (event) => {
  const details = event.target;
  if (!details.matches?.("#trace details")) return;
  if (details.open && details.dataset.part) {
    const list = details.querySelector(":scope > ol");
    unfold(details.dataset.part, list, "innerHTML");
    details.removeAttribute("data-part");
  }
  if (details.matches(".thread")) remember(details);
}, true);

function remember(thread) {
  const address = new URL(location.href);
  if (thread.open) address.searchParams.set("thread", thread.dataset.pid);
  else if (address.searchParams.get("thread") === thread.dataset.pid) address.searchParams.delete("thread");
  history.replaceState(null, "", address);
}

document.addEventListener("click", (event) => {
  const more = event.target.closest("#trace button[data-part]");
  if (more) {
    more.disabled = true;
    unfold(more.dataset.part, more.closest("li"), "outerHTML");
  }
  const hit = event.target.closest("#trace button[data-hit]");
  if (hit) step(Number(hit.dataset.hit));
  const link = event.target.closest("#trace a[data-show]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) {
    event.preventDefault();
    show(link.href);
  }
});

// --- marked calls -----------------------------------------------------------------------------

let chosen = null;

function step(by) {
  const hits = [...document.querySelectorAll("#trace li.hit")];
  if (!hits.length) return;
  const at = hits.indexOf(chosen);
  chosen = hits[at < 0 ? (by > 0 ? 0 : hits.length - 1) : (at + by + hits.length) % hits.length];
  for (let parent = chosen.parentElement; parent && parent.id !== "trace"; parent = parent.parentElement) {
    if (parent.tagName === "DETAILS") parent.open = true;
  }
  const line = chosen.querySelector(":scope > .line, :scope > details > summary");
  line.focus();
  line.scrollIntoView({ block: "center" });
}

document.addEventListener("submit", (event) => {
  if (event.target.id !== "trace-form") return;
  event.preventDefault();
  const fields = [...new FormData(event.target)].filter(([, value]) => value !== "");
  const address = new URL(event.target.action);
  address.search = new URLSearchParams(fields);
  chosen = null;
  show(address.href);
});

// --- the axis ---------------------------------------------------------------------------------

function zoom(name) {
  const link = document.querySelector(`#axis [data-zoom="${name}"]`);
  if (link) show(link.href);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.id === "axis" && KEYS[event.key]) {
    event.preventDefault();
    zoom(KEYS[event.key]);
  }
  if (event.target.matches?.("#trace summary") && ["ArrowDown", "ArrowUp"].includes(event.key)) {
    event.preventDefault();
    const seen = [...document.querySelectorAll("#trace summary")].filter((summary) => summary.checkVisibility());
    seen[seen.indexOf(event.target) + (event.key === "ArrowDown" ? 1 : -1)]?.focus();
  }
  if (event.target.matches?.("#trace summary") && ["ArrowLeft", "ArrowRight"].includes(event.key)) {
    event.preventDefault();
    event.target.parentElement.open = event.key === "ArrowRight";
  }
});

function timeAt(share) {
  const { base, times, places } = document.getElementById("axis").dataset;
  const moments = times.split(",").map(Number);
  const knots = places.split(",").map(Number);
  let n = 1;
  while (n < knots.length - 1 && knots[n] < share) n++;
  const part = (share - knots[n - 1]) / (knots[n] - knots[n - 1]);
  return BigInt(base) + BigInt(Math.round(moments[n - 1] + part * (moments[n] - moments[n - 1])));
}

let drag = null;

function shareOf(event, ruler) {
  const box = ruler.getBoundingClientRect();
  return Math.min(1, Math.max(0, (event.clientX - box.left) / box.width));
}

document.addEventListener("pointerdown", (event) => {
  const ruler = event.target.closest(".ruler");
  if (!ruler || event.button !== 0) return;
  event.preventDefault();
  const box = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  box.setAttribute("class", "drag");
  box.setAttribute("height", "30");
  ruler.append(box);
  drag = { ruler, box, from: shareOf(event, ruler), x: event.clientX };
  ruler.setPointerCapture(event.pointerId);
});

document.addEventListener("pointermove", (event) => {
  if (!drag) return;
  const to = shareOf(event, drag.ruler);
  drag.box.setAttribute("x", `${100 * Math.min(drag.from, to)}%`);
  drag.box.setAttribute("width", `${100 * Math.abs(drag.from - to)}%`);
});

document.addEventListener("pointerup", (event) => {
  if (!drag) return;
  const { ruler, box, from, x } = drag;
  drag = null;
  box.remove();
  if (Math.abs(event.clientX - x) < LEAST) return;
  const [start, end] = [from, shareOf(event, ruler)].sort((a, b) => a - b).map(timeAt);
  const address = new URL(location.href);
  address.searchParams.set("from", start);
  address.searchParams.set("to", end > start ? end : start + 1n);
  show(address.href);
});

addEventListener("popstate", () => show(location.href, { push: false }));

// The debug forest of a run: a cycle opens beside it, arrow keys go through the trees, kinds can be
// hidden. The server renders the trees, and live.js keeps them and the open cycle current.
let forest, opened, box;
let chosen = null; // the key of the open cycle

const cards = () => [...forest.querySelectorAll("a.cycle")];
const card = (key) => document.getElementById(`c-${key}`);
const above = (cycle) => cycle.closest("ul").closest("li")?.querySelector("a.cycle");
const below = (cycle) => cycle.closest("li").querySelector(":scope > ul > li > a.cycle");

function mark() {
  for (const cycle of forest.querySelectorAll("a.cycle[aria-current]")) {
    if (cycle.id !== `c-${chosen}`) cycle.removeAttribute("aria-current");
  }
  const cycle = chosen && card(chosen);
  if (cycle) cycle.setAttribute("aria-current", "true");
}

// One of the cards can be reached by Tab, the others by arrow keys.
function rove(to) {
  for (const cycle of forest.querySelectorAll("a.cycle:not([tabindex]), a.cycle[tabindex='0']")) {
    if (cycle !== to) cycle.tabIndex = -1;
  }
  if (to) to.tabIndex = 0;
}

function settle() {
  mark();
  const now = forest.querySelector("a.cycle[tabindex='0']");
  rove(now ?? (chosen && card(chosen)) ?? forest.querySelector("a.cycle"));
}

// Within the box alone: the page stays at its beginning.
function reveal(cycle) {
  const frame = document.getElementById("forest-box");
  const [of, its] = [cycle.getBoundingClientRect(), frame.getBoundingClientRect()];
  if (of.bottom > its.bottom) frame.scrollTop += of.top - its.top - its.height / 3;
  if (of.right > its.right) frame.scrollLeft += of.left - its.left - its.width / 3;
}

function nameOf(cycle) {
  return new URL(cycle.href).searchParams.get("node");
}

function load(name) {
  const path = `/runs/${box.dataset.run}/cycle?node=${encodeURIComponent(name)}`;
  return htmx.ajax("GET", path, { target: opened, swap: "innerMorph" });
}

function open(cycle) {
  const address = new URL(location.href);
  address.searchParams.set("node", nameOf(cycle));
  history.pushState(null, "", address);
  chosen = cycle.id.slice(2);
  settle();
  rove(cycle);
  load(nameOf(cycle)).then(() => {
    const title = document.getElementById("cycle-title");
    if (innerWidth < 1200) title?.scrollIntoView({ block: "start" });
  });
}

function move(event) {
  const cycle = event.target.closest?.("a.cycle");
  if (!cycle || event.altKey || event.ctrlKey || event.metaKey) return;
  const all = () => cards();
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  let to;
  if (step) to = all()[all().indexOf(cycle) + step];
  else if (event.key === "ArrowRight") to = below(cycle);
  else if (event.key === "ArrowLeft") to = above(cycle);
  else if (event.key === "Home") to = all()[0];
  else if (event.key === "End") to = all().at(-1);
  else if (event.key === " ") open(cycle);
  else return;
  event.preventDefault();
  if (!to) return;
  rove(to);
  to.focus();
}

function click(event) {
  if (event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const link = event.target.closest("a.cycle, a[data-cycle]");
  const cycle = link?.matches("a.cycle") ? link : link && cards().find((it) => nameOf(it) === link.dataset.cycle);
  if (!cycle) return;
  event.preventDefault();
  open(cycle);
}

function hide() {
  const boxes = [...document.querySelectorAll("#hide input[type='checkbox']")];
  const kinds = boxes.filter((it) => it.checked).map((it) => it.value);
  box.dataset.hide = kinds.join(" ");
  const address = new URL(location.href);
  if (kinds.length) address.searchParams.set("hide", kinds.join(","));
  else address.searchParams.delete("hide");
  history.replaceState(null, "", address);
}

function read() {
  const name = new URL(location.href).searchParams.get("node");
  chosen = cards().find((cycle) => nameOf(cycle) === name)?.id.slice(2) ?? null;
}

export function tendForest() {
  box = document.getElementById("run");
  if (!box) return;
  forest = document.getElementById("forest");
  opened = document.getElementById("opened");
  read();
  settle();
  if (chosen) reveal(card(chosen));
  document.addEventListener("click", click);
  forest.addEventListener("keydown", move);
  document.getElementById("hide").addEventListener("change", hide);
  document.addEventListener("htmx:after:swap", settle);
  addEventListener("popstate", () => location.reload());
}

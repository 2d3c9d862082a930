// What every page does: times in the reader's zone, the live mark, light or dark, and the parts
// that only some pages have.
import { keepCurrent } from "./live.js";
import { tendForest } from "./forest.js";
import { fillLogs } from "./log_window.js";
import { loadReports } from "./crash_reports.js";
import { followSelection } from "./selection.js";
import { showTimes } from "./times.js";
import { growTimelines } from "./timeline.js";
import "./theme_switch.js";

// The tab's title follows the page, even while the tab is in the background.
function titleTab() {
  const title = document.querySelector("[data-title]")?.dataset.title;
  if (title) document.title = `${title} · kGymSuite`;
}

function dress() {
  titleTab();
  showTimes();
  growTimelines();
  fillLogs();
  loadReports();
}

document.addEventListener("htmx:after:swap", dress);
setInterval(() => {
  if (document.hidden) return;
  showTimes();
  growTimelines();
}, 1000);
dress();
followSelection();
tendForest();

// Where there is little room, the list comes first.
const filters = document.querySelector("details.filter-box:not([data-used])");
if (filters && innerWidth < 768) filters.open = false;

// Arrow keys lead to the previous and the next question of a cycle.
addEventListener("keydown", (event) => {
  const rel = { ArrowLeft: "prev", ArrowRight: "next" }[event.key];
  const isTyping = event.target.closest("input, select, textarea, [role='region'], [role='tree']");
  if (!rel || isTyping || event.altKey || event.ctrlKey || event.metaKey) return;
  document.querySelector(`nav[aria-label="Questions of the cycle"] a[rel="${rel}"]`)?.click();
});

// The result of an action is shown once, and not again when the page is loaded again or shared.
const address = new URL(location.href);
if (address.searchParams.has("done")) {
  address.searchParams.delete("done");
  history.replaceState(null, "", address);
}
keepCurrent();

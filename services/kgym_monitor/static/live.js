// Keeps a page current: asks for its parts every two seconds while the tab is visible, and marks
// the page as stale while that fails.
const PAUSE = 2_000;
const PATIENCE = 10_000; // a network that falls silent answers nothing, and closes nothing

export function keepCurrent() {
  const mark = document.getElementById("live-mark");
  if (!mark) return;
  const words = document.getElementById("live-words");
  let tag = ""; // names the parts that the page has
  let staleSince = null;
  let timer = null;
  let polling = false;

  function show(isCurrent) {
    staleSince = isCurrent ? null : (staleSince ?? new Date());
    const time = staleSince?.toLocaleTimeString();
    const text = isCurrent ? "Live" : `Stale since ${time}, reconnecting`;
    mark.dataset.state = isCurrent ? "live" : "stale";
    if (words.textContent !== text) words.textContent = text;
  }

  function address() {
    const url = new URL(location.href);
    url.searchParams.set("poll", "yes");
    const rows = [...document.querySelectorAll("tr[id^='job-']")].map((row) => row.id.slice(4));
    if (rows.length) url.searchParams.set("rows", rows.join(","));
    return url.pathname + url.search;
  }

  async function poll() {
    clearTimeout(timer);
    if (polling || document.hidden) return;
    polling = true;
    const asked = location.search;
    let answer = null;
    const take = (event) => {
      answer = event.detail.ctx.response;
      // An error is a whole page; and a reader may have opened other parts meanwhile.
      if (answer.status !== 200 || location.search !== asked) event.preventDefault();
    };
    mark.addEventListener("htmx:after:request", take, { once: true });
    const giveUp = setTimeout(() => htmx.trigger(mark, "htmx:abort"), PATIENCE);
    await htmx.ajax("GET", address(), {
      source: mark,
      swap: "none",
      headers: tag ? { "If-None-Match": tag } : {},
    });
    clearTimeout(giveUp);
    mark.removeEventListener("htmx:after:request", take);
    polling = false;
    if (location.search === asked) {
      const isCurrent = answer?.status === 200 || answer?.status === 304;
      if (isCurrent) tag = answer.headers.get("ETag") ?? "";
      show(isCurrent);
    }
    timer = setTimeout(poll, location.search === asked ? PAUSE : 0);
  }

  document.addEventListener("visibilitychange", poll);
  poll();
}

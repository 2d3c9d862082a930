// The mark that says whether the page is as things are now, and the count of newer jobs.
const PATIENCE = 15_000; // three heartbeats
const RETRY = 5_000;

export function showLive() {
  const source = document.getElementById("live");
  if (!source) return;
  const mark = document.getElementById("live-mark");
  const words = document.getElementById("live-words");
  let heard = 0;
  let staleSince = 0;
  let tried = Date.now();

  function show(state) {
    if (state === "live") {
      heard = Date.now();
      staleSince = 0;
    } else if (!staleSince) {
      staleSince = Date.now();
    }
    const since = new Date(staleSince || Date.now());
    const text =
      state === "live" ? "Live" : `Stale since ${since.toLocaleTimeString()}, reconnecting`;
    if (mark.dataset.state !== state) mark.dataset.state = state;
    if (words.textContent !== text) words.textContent = text;
  }

  source.addEventListener("beat", () => show("live"));
  source.addEventListener("stale", () => show("stale"));
  for (const name of ["htmx:sse:error", "htmx:sse:close", "htmx:error"]) {
    source.addEventListener(name, () => show("stale"));
  }
  source.addEventListener("htmx:sse:before:connection", (event) => {
    if (event.detail.connection.attempt > 0 && !document.hidden) show("stale");
  });
  source.addEventListener("newest", (event) => countNewer(event.detail.data));
  setInterval(() => {
    if (document.hidden) return;
    if (heard && Date.now() - heard > PATIENCE) show("stale");
    if (mark.dataset.state === "live" || Date.now() - tried < RETRY) return;
    // A stream that has begun comes back by itself; one that never began does not.
    tried = Date.now();
    show("stale");
    htmx.trigger(source, "reconnect");
  }, 1000);
  document.addEventListener("visibilitychange", () => {
    heard = Date.now(); // a page in the background does not listen
  });
}

function countNewer(numbers) {
  const button = document.getElementById("newer");
  if (!button) return;
  const rows = document.querySelectorAll("tr[id^='job-']");
  const shown = Math.max(0, ...[...rows].map((row) => Number(row.id.slice(4))));
  const newer = JSON.parse(numbers).filter((number) => number > shown).length;
  const many = newer > 50 ? "Over 50" : String(newer);
  button.hidden = newer === 0;
  button.textContent = newer ? `${many} newer ${newer === 1 ? "job" : "jobs"}: show` : "";
  // There was nothing to read yet.
  if (newer && !rows.length) setTimeout(() => location.reload(), 1000);
}

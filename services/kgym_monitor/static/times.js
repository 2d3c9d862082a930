// Times in the reader's zone, and durations that keep counting.
const absolute = new Intl.DateTimeFormat(undefined, {
  dateStyle: "medium",
  timeStyle: "short",
});
const exact = new Intl.DateTimeFormat(undefined, {
  dateStyle: "full",
  timeStyle: "long",
});
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

export function duration(seconds) {
  if (seconds < 9.95) return `${Math.max(0, seconds).toFixed(1)} s`;
  const whole = Math.round(seconds);
  for (const [size, name, part, partName] of [
    [86400, "d", 3600, "h"],
    [3600, "h", 60, "min"],
    [60, "min", 1, "s"],
  ]) {
    if (whole < size) continue;
    const rest = Math.floor((whole % size) / part);
    return `${Math.floor(whole / size)} ${name}` + (rest ? ` ${rest} ${partName}` : "");
  }
  return `${whole} s`;
}

function ago(moment) {
  const seconds = (moment - Date.now()) / 1000;
  const past = Math.abs(seconds);
  if (past < 5) return "just now";
  if (past < 60) return relative.format(Math.round(seconds), "second");
  if (past < 3600) return relative.format(Math.round(seconds / 60), "minute");
  if (past < 86400) return relative.format(Math.round(seconds / 3600), "hour");
  return absolute.format(moment);
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function showTimes() {
  for (const element of document.querySelectorAll("time[datetime]")) {
    const moment = new Date(element.dateTime);
    put(element, ago(moment));
    const title = `${exact.format(moment)} (${element.dateTime})`;
    if (element.title !== title) element.title = title;
  }
  for (const element of document.querySelectorAll("[data-since]")) {
    const seconds = Date.now() / 1000 - Number(element.dataset.since);
    put(element, duration(seconds < 9.95 ? Math.floor(Math.max(0, seconds)) : seconds));
  }
}

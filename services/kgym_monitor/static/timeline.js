// Bars of a running timeline: those without an end reach to now.
const WIDTH = 1000;
const LEAST = 3;

export function growTimelines() {
  for (const list of document.querySelectorAll("ol.timeline:not([data-end])")) {
    const start = Number(list.dataset.start);
    const now = Date.now() / 1000;
    const length = Math.max(now - start, 0.001);
    for (const bar of list.querySelectorAll("rect[data-from]")) {
      const from = Number(bar.dataset.from);
      const to = bar.dataset.to === undefined ? now : Number(bar.dataset.to);
      const x = Math.min(Math.max(0, ((from - start) / length) * WIDTH), WIDTH - LEAST);
      const width = Math.min(Math.max(LEAST, ((to - from) / length) * WIDTH), WIDTH - x);
      bar.setAttribute("x", x.toFixed(2));
      bar.setAttribute("width", width.toFixed(2));
    }
  }
}

// Draws each chart from the table of its numbers, and again when the table changes, so that curves
// always show what screen readers read.
// Later shapes cover earlier ones, so the sums of stacked columns are drawn from the highest down.
const HEIGHT = 190;
const DAY = 86_400;
const plots = new Map(); // by the element that they are drawn in
const resized = new ResizeObserver((entries) => {
  for (const { target } of entries) fit(target);
});

function drawAll() {
  for (const [box, { plot }] of plots) {
    if (box.isConnected) continue;
    resized.unobserve(box);
    plot.destroy();
    plots.delete(box);
  }
  for (const box of document.querySelectorAll(".chart")) draw(box);
  for (const cell of document.querySelectorAll("th[data-at]")) {
    const table = cell.closest("table");
    cell.textContent = moment(Number(cell.dataset.at), Number(table.dataset.piece));
  }
}

function draw(box) {
  const numbers = read(box.closest("figure"));
  const shape = JSON.stringify([numbers.columns, numbers.piece, numbers.share]);
  const text = JSON.stringify(numbers);
  const known = plots.get(box);
  if (known?.text === text) return;
  if (known?.shape === shape) {
    Object.assign(known, { numbers, text });
    known.plot.setData(stacked(numbers));
    return;
  }
  known?.plot.destroy();
  const kept = { numbers, text, shape };
  kept.plot = new uPlot(options(box, kept), stacked(numbers), box);
  plots.set(box, kept);
  resized.observe(box);
}

function fit(box) {
  const known = plots.get(box);
  if (known && box.clientWidth && box.clientWidth !== known.plot.width) {
    known.plot.setSize({ width: box.clientWidth, height: HEIGHT });
  }
}

// --- the numbers -----------------------------------------------------------------------------

function read(figure) {
  const table = figure.querySelector("table");
  const from = Number(table.dataset.from);
  const piece = Number(table.dataset.piece);
  const share = "share" in table.dataset;
  const heads = [...table.tHead.rows[0].cells];
  const drawn = heads.flatMap((cell, place) => (cell.dataset.colour ? [place] : []));
  const starts = Array.from({ length: Number(table.dataset.pieces) }, (_, n) => from + n * piece);
  const values = drawn.map(() => starts.map(() => (share ? null : 0)));
  for (const row of table.tBodies[0].rows) {
    const number = (Number(row.cells[0].dataset.at) - from) / piece;
    drawn.forEach((place, column) => {
      const text = row.cells[place].textContent;
      if (text !== "") values[column][number] = Number(text);
    });
  }
  const columns = drawn.map((place) => heads[place].textContent);
  return { columns, colours: drawn.map((place) => heads[place].dataset.colour), starts, values, piece, share };
}

function stacked({ starts, values, share }) {
  if (share) return [starts, ...values];
  const sums = [];
  for (const own of values) {
    const below = sums.at(-1);
    sums.push(own.map((value, number) => value + (below?.[number] ?? 0)));
  }
  return [starts, ...sums.reverse()];
}

// --- how they are drawn ----------------------------------------------------------------------

function options(box, kept) {
  const { columns, colours, share, piece } = kept.numbers;
  const order = share ? columns.map((_, n) => n) : columns.map((_, n) => columns.length - 1 - n);
  const text = () => shade(box, "color");
  const line = () => shade(box, "borderTopColor");
  const axis = {
    stroke: text,
    grid: { stroke: line, width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  const series = order.map((place) => {
    const own = () => shade(swatch(box, colours[place]), "backgroundColor");
    if (share) return { stroke: own, width: 2, points: { show: true, size: 6, fill: own } };
    const paths = uPlot.paths.bars({ size: [0.94, 60], align: 1 });
    return { fill: own, width: 0, paths, points: { show: false } };
  });
  return {
    width: box.clientWidth || 300,
    height: HEIGHT,
    padding: [8, 22, 0, 0],
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), ...(piece >= DAY ? ["Etc/UTC"] : [])),
    legend: { show: false },
    cursor: {
      y: false,
      drag: { x: false, y: false },
      points: { show: false },
      dataIdx: (plot, _, closest, at) =>
        !share && closest > 0 && at < plot.data[0][closest] ? closest - 1 : closest,
    },
    scales: {
      x: { range: (_, from, to) => [from - (share ? piece / 2 : 0), to + (share ? piece / 2 : piece)] },
      y: { range: (_, __, most) => (share ? [0, 104] : [0, Math.max(2, (most ?? 0) * 1.06)]) },
    },
    axes: [
      { ...axis, size: 28, space: 70, values: (_, splits, __, ___, step) => splits.map((at) => tick(at, step, piece)) },
      { ...axis, size: 46, space: 34, incrs: [1, 2, 5, 10, 20, 25, 50].concat([1, 2, 5].flatMap((n) => [100, 1e3, 1e4, 1e5, 1e6].map((size) => n * size)).sort((a, b) => a - b)),
        values: (_, splits) => splits.map((value) => (share ? `${value} %` : value.toLocaleString("en", { notation: "compact" }))) },
    ],
    series: [{}, ...series],
    hooks: { ready: [(plot) => addTip(plot)], setCursor: [(plot) => showTip(plot, kept)] },
  };
}

// The colours are those of the style sheet, light or dark, as the browser has worked them out.
function shade(element, name) {
  return getComputedStyle(element)[name];
}

function swatch(box, colour) {
  return box.closest("figure").querySelector(`.swatch.${CSS.escape(colour)}`) ?? box;
}

function format(at, piece, wanted) {
  const zone = piece >= DAY ? { timeZone: "UTC" } : {};
  return new Intl.DateTimeFormat(undefined, { ...wanted, ...zone }).format(at * 1000);
}

function tick(at, step, piece) {
  const clock = format(at, piece, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return step < DAY && clock !== "00:00" ? clock : format(at, piece, { day: "numeric", month: "short" });
}

function moment(at, piece) {
  const day = { weekday: "short", day: "numeric", month: "short" };
  const clock = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  return format(at, piece, piece >= DAY ? day : { ...day, ...clock });
}

// --- what the pointer is over ----------------------------------------------------------------

function addTip(plot) {
  const tip = document.createElement("div");
  tip.className = "chart-tip";
  tip.hidden = true;
  plot.over.append(tip);
}

function showTip(plot, { numbers }) {
  const tip = plot.over.querySelector(".chart-tip");
  const { idx, left } = plot.cursor;
  if (!tip) return;
  tip.hidden = idx === null || idx === undefined || left < 0;
  if (tip.hidden) return;
  const { starts, columns, values, piece, share } = numbers;
  const lines = columns.flatMap((label, n) => {
    const value = values[n][idx];
    return value ? [`${share ? `${value} %` : value.toLocaleString("en")} ${label}`] : [];
  });
  tip.replaceChildren(
    ...[moment(starts[idx], piece), ...(lines.length ? lines.reverse() : ["nothing"])].map((line) => {
      const row = document.createElement("div");
      row.textContent = line;
      return row;
    }),
  );
  // Beside the pointer, on the side that has more room.
  const right = left < plot.over.clientWidth / 2;
  const x = right ? left + 12 : Math.max(0, left - 12 - tip.offsetWidth);
  tip.style.transform = `translate(${x}px, 0)`;
}

// --- when ------------------------------------------------------------------------------------

function recolour() {
  for (const { plot } of plots.values()) plot.redraw();
}

document.addEventListener("htmx:after:swap", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });
drawAll();

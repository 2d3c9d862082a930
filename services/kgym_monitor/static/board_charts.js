// Draws Pass@k and cost against resolution from the tables beside them.
const HEIGHT = 190;
const plots = [];

function shade(element, name) {
  return getComputedStyle(element)[name];
}

function curve(box) {
  const figure = box.closest("figure");
  const table = figure.querySelector("table");
  const heads = [...table.tHead.rows[0].cells].slice(1);
  const rows = [...table.tBodies[0].rows];
  const values = heads.map((_, place) =>
    rows.map((row) => (row.cells[place + 1].dataset.value ? Number(row.cells[place + 1].dataset.value) : null)),
  );
  const colours = heads.map((cell) => figure.querySelector(`.swatch.${CSS.escape(cell.dataset.colour)}`));
  return {
    data: [rows.map((_, number) => number + 1), ...values],
    series: colours.map((swatch) => {
      const own = () => shade(swatch, "backgroundColor");
      return { stroke: own, width: 2, points: { show: true, size: 5, fill: own } };
    }),
    x: (splits) => splits.map((value) => (Number.isInteger(value) ? String(value) : "")),
    range: [0.5, rows.length + 0.5],
    told: (number) => [`k = ${number + 1}`, ...heads.map((cell, place) => `${(values[place][number] ?? 0).toFixed(2)} % ${cell.textContent}`)],
  };
}

function cost(box) {
  const rows = [...document.querySelectorAll("#board tbody tr")]
    .filter((row) => row.dataset.cost !== "" && row.dataset.rate !== "")
    .map((row) => ({ name: row.dataset.name, cost: Number(row.dataset.cost), rate: Number(row.dataset.rate), isBest: "frontier" in row.dataset }))
    .sort((point, other) => point.cost - other.cost);
  if (!rows.length) return null;
  const own = () => shade(box, "color");
  return {
    data: [rows.map((row) => row.cost), rows.map((row) => row.rate)],
    series: [{ stroke: own, width: 0, paths: () => null, points: { show: true, size: 8, fill: own } }],
    x: (splits) => splits.map((value) => `$${value}`),
    range: [0, Math.max(...rows.map((row) => row.cost)) * 1.08 || 1],
    labels: rows.filter((row) => row.isBest),
    told: (number) => [`$${rows[number].cost.toFixed(2)}, ${rows[number].rate.toFixed(2)} %`, rows[number].name],
  };
}

function draw(box) {
  const drawing = (box.dataset.shape === "curve" ? curve : cost)(box);
  if (drawing === null) {
    box.textContent = "The cost of the attempts is unknown.";
    return;
  }
  const axis = {
    stroke: () => shade(box, "color"),
    grid: { stroke: () => shade(box, "borderTopColor"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  box.replaceChildren();
  const plot = new uPlot(
    {
      width: box.clientWidth || 300,
      height: HEIGHT,
      padding: [8, 22, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false } },
      scales: { x: { time: false, range: () => drawing.range }, y: { range: () => [0, 104] } },
      axes: [
        { ...axis, size: 28, values: (_, splits) => drawing.x(splits) },
        { ...axis, size: 46, values: (_, splits) => splits.map((value) => `${value} %`) },
      ],
      series: [{}, ...drawing.series],
      hooks: { draw: [(own) => label(own, drawing, box)], ready: [addTip], setCursor: [(own) => showTip(own, drawing)] },
    },
    drawing.data,
    box,
  );
  plots.push(plot);
  new ResizeObserver(() => {
    if (box.clientWidth && box.clientWidth !== plot.width) plot.setSize({ width: box.clientWidth, height: HEIGHT });
  }).observe(box);
}

// Names the setups that resolve most for what they cost.
function label(plot, { labels = [] }, box) {
  const { ctx } = plot;
  ctx.save();
  ctx.fillStyle = shade(box, "color");
  ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
  for (const { name, cost, rate } of labels) {
    const x = plot.valToPos(cost, "x", true);
    ctx.textAlign = x > ctx.canvas.width / 2 ? "right" : "left";
    const away = (ctx.textAlign === "left" ? 8 : -8) * devicePixelRatio;
    ctx.fillText(name.slice(0, 30), x + away, plot.valToPos(rate, "y", true));
  }
  ctx.restore();
}

function addTip(plot) {
  const tip = document.createElement("div");
  tip.className = "chart-tip";
  tip.hidden = true;
  plot.over.append(tip);
}

function showTip(plot, { told }) {
  const tip = plot.over.querySelector(".chart-tip");
  const { idx, left } = plot.cursor;
  if (!tip) return;
  tip.hidden = idx === null || idx === undefined || left < 0;
  if (tip.hidden) return;
  tip.replaceChildren(
    ...told(idx).map((line) => {
      const row = document.createElement("div");
      row.textContent = line;
      return row;
    }),
  );
  const right = left < plot.over.clientWidth / 2;
  tip.style.transform = `translate(${right ? left + 12 : Math.max(0, left - 12 - tip.offsetWidth)}px, 0)`;
}

function recolour() {
  for (const plot of plots) plot.redraw();
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolour);
new MutationObserver(recolour).observe(document.documentElement, { attributeFilter: ["data-theme"] });
for (const box of document.querySelectorAll(".board-chart")) draw(box);

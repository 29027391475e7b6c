// Values under a cursor, by pointer or by arrow keys. Without this the page shows the same curves and tables.
"use strict";
for (const figure of document.querySelectorAll("figure[data-chart]")) {
  const chart = JSON.parse(figure.querySelector("script").textContent);
  const svg = figure.querySelector("svg");
  const output = figure.querySelector("output");
  const steps = [...new Set(chart.curves.flatMap((curve) => curve.x))].sort((a, b) => a - b);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  line.setAttribute("class", "cursor");
  line.setAttribute("y1", chart.top);
  line.setAttribute("y2", chart.bottom);
  let place = -1;
  const upTo = (values, value) => {
    let low = 0, high = values.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (values[middle] <= value) low = middle + 1; else high = middle;
    }
    return low - 1;
  };
  const show = (next) => {
    place = Math.max(0, Math.min(steps.length - 1, next));
    const step = steps[place];
    const x = chart.left + ((step - chart.low) / (chart.high - chart.low || 1)) * (chart.right - chart.left);
    line.setAttribute("x1", x);
    line.setAttribute("x2", x);
    svg.append(line);
    const said = chart.curves.map((curve) => {
      const at = upTo(curve.x, step);
      return at < 0 ? "" : `${curve.label} ${Number(curve.y[at].toPrecision(5))}`;
    });
    output.textContent = `step ${step}: ${said.filter(Boolean).join(", ")}`;
  };
  figure.addEventListener("keydown", (event) => {
    const far = event.shiftKey ? 10 : 1;
    const moves = { ArrowRight: place + far, ArrowLeft: place - far, Home: 0, End: steps.length - 1 };
    if (event.key in moves) { event.preventDefault(); show(moves[event.key]); }
  });
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * chart.width;
    const step = chart.low + ((at - chart.left) / (chart.right - chart.left)) * (chart.high - chart.low);
    show(upTo(steps, step + (chart.high - chart.low) / (2 * steps.length)));
  });
}
const live = document.documentElement.dataset.live;
if (live) {
  // A page that is served asks whether the run has written more; it then loads again where the reader is.
  setInterval(async () => {
    const answer = await fetch("version", { cache: "no-store" }).catch(() => null);
    if (answer?.ok && (await answer.text()) !== live) location.reload();
  }, 3000);
}

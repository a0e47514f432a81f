// Small charts as inline SVG. A chart is drawn again whenever the width of its container changes.

/** Draw a chart now and after each change of width. `draw(width)` returns an SVG element. */
function chart(draw) {
  const container = element("div", { class: "chart" });
  let drawnWidth = 0;
  new ResizeObserver(([entry]) => {
    const width = Math.round(entry.contentRect.width);
    if (width === 0 || width === drawnWidth) return;
    drawnWidth = width;
    container.replaceChildren(draw(width));
  }).observe(container);
  return container;
}

function scale(domain, range) {
  const factor = (range[1] - range[0]) / (domain[1] - domain[0]);
  return (value) => range[0] + (value - domain[0]) * factor;
}

/** About `count` round numbers from 0 to at least `maximum`. */
function roundTicks(maximum, count = 4) {
  const rough = Math.max(maximum, 1e-9) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
  return Array.from({ length: Math.ceil(maximum / step - 1e-9) + 1 }, (_, index) => index * step);
}

function canvas(width, height, label) {
  return shape("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
}

/** Grid lines with their numbers, and the titles of both axes. */
function drawAxes(svg, { x, y, xTicks, yTicks, xTitle, yTitle, formatX, formatY }) {
  const left = x(xTicks[0]);
  const right = x(xTicks.at(-1));
  const bottom = y(yTicks[0]);
  const top = y(yTicks.at(-1));
  for (const tick of yTicks) {
    svg.append(
      shape("line", { class: tick === yTicks[0] ? "axis" : "grid", x1: left, x2: right, y1: y(tick), y2: y(tick) }),
      shape("text", { class: "tick", x: left - 8, y: y(tick), dy: "0.32em", "text-anchor": "end" }, formatY(tick)),
    );
  }
  for (const tick of xTicks) {
    svg.append(shape("text", { class: "tick", x: x(tick), y: bottom + 18, "text-anchor": "middle" }, formatX(tick)));
  }
  svg.append(
    shape("text", { class: "axis-title", x: (left + right) / 2, y: bottom + 38, "text-anchor": "middle" }, xTitle),
    shape("text", { class: "axis-title", x: left - 34, y: top - 12 }, yTitle),
  );
}

function linePath(points) {
  return points.map(([x, y], index) => `${index ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}

/** A bar of one line: parts of `total`, each with a kind. */
function stackedBar(parts, total, label, height = 12) {
  const svg = shape("svg", {
    class: "stack", viewBox: `0 0 100 ${height}`, height, preserveAspectRatio: "none", role: "img", "aria-label": label,
  });
  let start = 0;
  for (const [kind, value] of parts) {
    const width = total > 0 ? (100 * value) / total : 0;
    svg.append(shape("rect", { class: kind, x: start, y: 0, width, height }));
    start += width;
  }
  return svg;
}

// Precision over recall with the same corrections as filled areas; AP, background and missed by OKS threshold.

function stagesOf(run) {
  return [
    { kind: "ap", label: "Result", ap: run.thresholds.uncorrected, precision: run.precision.uncorrected },
    ...CORRECTIONS.map((kind) => ({
      kind, label: `${KINDS[kind].label} corrected`, ap: run.thresholds[kind], precision: run.precision[kind],
    })),
  ];
}

/** The precision curve at one OKS threshold, or the mean of all. Precision in the data is in thousandths. */
function curveOf(stage, threshold) {
  if (threshold >= 0) return stage.precision[threshold].map((value) => value / 1000);
  return stage.precision[0].map((_, index) => mean(stage.precision.map((curve) => curve[index])) / 1000);
}

function drawPrecision(data, run, view) {
  const index = data.oks.findIndex((value) => value.toFixed(2) === view.oks);
  const choices = [["mean", "Mean"], ...[0.5, 0.75, 0.85, 0.95].map((value) => [value.toFixed(2), value.toFixed(2)])];
  const stages = stagesOf(run);
  const curves = stages.map((stage) => curveOf(stage, index));
  const readout = element("dl", { class: "readout" });
  const describe = (recall) => {
    const at = Math.round(recall * (curves[0].length - 1));
    const rows = stages.map((stage, position) => element("div", {},
      element("dt", {}, swatch(stage.kind), stage.label), element("dd", {}, curves[position][at].toFixed(3))));
    readout.replaceChildren(
      element("div", { class: "readout-title" },
        element("dt", {}, "Precision at recall"), element("dd", {}, recall.toFixed(2))),
      ...rows.reverse());
  };
  describe(0.5);
  const areas = chart((width) => drawAreas(width, stages, curves, describe));
  areas.id = "precision-chart";
  return [
    element("div", { class: "toolbar" }, element("span", { class: "muted" }, "OKS threshold"),
      segmentedControl("OKS threshold", choices, index < 0 ? "mean" : view.oks, (oks) => show({ oks }))),
    element("div", { class: "chart-and-readout" }, areas, readout),
  ];
}

function drawAreas(width, stages, curves, describe) {
  const height = Math.min(420, Math.max(280, width * 0.6));
  const svg = canvas(width, height, "Precision over recall, with each kind of error corrected in turn");
  const x = scale([0, 1], [44, width - 12]);
  const y = scale([0, 1], [height - 48, 26]);
  const recalls = curves[0].map((_, index) => index / (curves[0].length - 1));
  // The last correction lies below the others, so that each stage covers all but its own gain.
  for (let index = stages.length - 1; index >= 0; index -= 1) {
    const points = recalls.map((recall, position) => [x(recall), y(Math.max(curves[index][position], 0))]);
    const area = `${linePath(points)}L${x(1)} ${y(0)}L${x(0)} ${y(0)}Z`;
    svg.append(
      shape("path", { class: `area ${stages[index].kind}`, d: area }),
      shape("path", { class: "area-edge", d: linePath(points) }));
  }
  const ticks = [0, 0.2, 0.4, 0.6, 0.8, 1];
  drawAxes(svg, {
    x, y, xTicks: ticks, yTicks: ticks, xTitle: "Recall", yTitle: "Precision",
    formatX: (value) => value.toFixed(1), formatY: (value) => value.toFixed(1),
  });
  const cursor = shape("line", { class: "cursor", y1: y(0), y2: y(1), x1: x(0.5), x2: x(0.5) });
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const inside = event.clientX - svg.getBoundingClientRect().left;
    const recall = Math.min(Math.max((inside - x(0)) / (x(1) - x(0)), 0), 1);
    cursor.setAttribute("x1", x(recall));
    cursor.setAttribute("x2", x(recall));
    describe(recall);
  });
  return svg;
}

function drawThresholds(data, run) {
  const columns = chart((width) => drawThresholdColumns(width, data, run));
  columns.id = "threshold-chart";
  const lines = chart((width) => drawFalseLines(width, data, run));
  lines.id = "false-chart";
  return [
    element("div", { class: "pair" },
      element("figure", {}, element("h3", {}, "AP at each OKS threshold"), columns,
        element("figcaption", { class: "muted" },
          "The stricter the threshold, the more small errors of position cost.")),
      element("figure", {}, element("h3", {}, "Background results and missed people"), lines,
        element("figcaption", { class: "muted" },
          "A result or a person without a partner at this OKS. The numbers grow with the threshold, "
          + "because inexact results count as both.")),
    ),
    thresholdTable(data, run),
  ];
}

function drawThresholdColumns(width, data, run) {
  const height = 290;
  const svg = canvas(width, height, "AP at each OKS threshold, with each kind of error corrected in turn");
  const x = scale([0, data.oks.length], [40, width - 8]);
  const y = scale([0, 1], [height - 48, 26]);
  const ticks = [0, 0.25, 0.5, 0.75, 1];
  const stages = stagesOf(run);
  const gap = 0.12;
  drawAxes(svg, {
    x: scale([0, data.oks.length], [40, width - 8]), y,
    xTicks: [0, data.oks.length], yTicks: ticks, xTitle: "OKS threshold", yTitle: "AP",
    formatX: () => "", formatY: (value) => value.toFixed(2),
  });
  data.oks.forEach((oks, column) => {
    let bottom = 0;
    const group = shape("g", {}, shape("title", {}, `OKS ${oks.toFixed(2)}: AP ${formatAp(run.thresholds.uncorrected[column])}`));
    for (const stage of stages) {
      const top = Math.max(stage.ap[column], bottom);
      group.append(shape("rect", {
        class: stage.kind, x: x(column + gap / 2), width: x(1 - gap) - x(0), y: y(top), height: y(bottom) - y(top),
      }));
      bottom = top;
    }
    svg.append(group);
    if (column % 2 === 0 || width > 480) {
      svg.append(shape("text", { class: "tick", x: x(column + 0.5), y: height - 30, "text-anchor": "middle" },
        oks.toFixed(2).slice(1)));
    }
  });
  return svg;
}

function drawFalseLines(width, data, run) {
  const height = 290;
  const series = [["background", run.background], ["missed", run.missed]];
  const yTicks = roundTicks(Math.max(...run.background, ...run.missed, 1));
  const svg = canvas(width, height, "Background results and missed people at each OKS threshold");
  const x = scale([data.oks[0], data.oks.at(-1)], [56, width - 96]);
  const y = scale([0, yTicks.at(-1)], [height - 48, 26]);
  drawAxes(svg, {
    x, y, xTicks: data.oks.filter((_, index) => index % 3 === 0), yTicks, xTitle: "OKS threshold", yTitle: "Number",
    formatX: (value) => value.toFixed(2).slice(1), formatY: formatCount,
  });
  const ends = series.map(([, values]) => y(values.at(-1)));
  const crowded = Math.abs(ends[0] - ends[1]) < 16;
  series.forEach(([kind, values], index) => {
    const points = values.map((value, column) => [x(data.oks[column]), y(value)]);
    svg.append(shape("path", { class: `line ${kind}`, d: linePath(points) }));
    points.forEach(([left, top], column) => svg.append(
      shape("circle", { class: `dot ${kind}`, cx: left, cy: top, r: 3.5 },
        shape("title", {}, `OKS ${data.oks[column].toFixed(2)}: ${formatCount(values[column])}`))));
    const shift = crowded ? (ends[index] <= ends[1 - index] && index === 0 ? -8 : 8) : 0;
    svg.append(shape("text", { class: "series", x: points.at(-1)[0] + 10, y: ends[index] + shift, dy: "0.32em" },
      KINDS[kind].label));
  });
  return svg;
}

function thresholdTable(data, run) {
  const rows = [
    ["AP", run.thresholds.uncorrected.map(formatAp)],
    ...CORRECTIONS.map((kind) => [`${KINDS[kind].label} corrected`, run.thresholds[kind].map(formatAp)]),
    ["Background", run.background.map(formatCount)],
    ["Missed", run.missed.map(formatCount)],
  ];
  return element("details", {}, element("summary", {}, "The same as numbers"),
    element("div", { class: "scroll" }, element("table", { class: "numbers" },
      element("thead", {}, element("tr", {}, element("th", { scope: "col" }, "OKS threshold"),
        data.oks.map((oks) => element("th", { scope: "col" }, oks.toFixed(2))))),
      element("tbody", {}, rows.map(([name, values]) => element("tr", {},
        element("th", { scope: "row" }, name), values.map((value) => element("td", {}, value))))))));
}

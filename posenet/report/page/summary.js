// The summary: the AP, and what each kind of error costs, as one stacked bar and as a table.

/** The errors of a run in the order of correction, each with the AP before and after its correction. */
function corrections(run) {
  let before = run.metrics.AP;
  return CORRECTIONS.map((kind) => {
    const after = run.corrected[kind];
    const row = { kind, before, after, gain: after - before, alone: run.alone[kind] - run.metrics.AP };
    before = after;
    return row;
  });
}

/** How often each kind of error occurs, in words. */
function occurrences(run, kind) {
  if (kind === "score") return pluralize(run.misranked, "result");
  if (kind === "background") return `${pluralize(run.background[0], "result")} at OKS 0.50`;
  if (kind === "missed") return `${pluralize(run.missed[0], "person", "people")} at OKS 0.50`;
  return pluralize(run.counts[kind], "keypoint");
}

function drawSummary(data, run) {
  const rows = corrections(run);
  return [
    element("div", { class: "hero" },
      element("div", { class: "figure" },
        element("div", { class: "figure-name" }, "Average precision"),
        element("div", { class: "figure-value", id: "ap" }, formatAp(run.metrics.AP)),
        element("p", { class: "muted" },
          `${pluralize(data.images, "image")}, ${pluralize(data.people, "person", "people")}, `
          + pluralize(run.results, "result")),
      ),
      element("div", { class: "verdict" },
        element("p", { class: "headline" }, verdict(run, rows)),
        groupingNote(run),
        element("dl", { class: "metrics" }, Object.entries(run.metrics).slice(1).map(([name, value]) =>
          element("div", {}, element("dt", {}, name), element("dd", {}, formatAp(value))))),
      ),
    ),
    costBar(run, rows),
    costTable(run, rows),
  ];
}

/** One sentence: the AP and the kind of error whose correction alone would gain most. */
function verdict(run, rows) {
  if (run.metrics.AP < 0) return "These images have no annotated people to compare the results with.";
  const worst = rows.reduce((best, row) => (row.alone > best.alone ? row : best));
  if (worst.alone < 0.0005) return "No kind of error costs any AP.";
  return `${KINDS[worst.kind].verdict}: correcting this alone would raise the AP from `
    + `${formatAp(run.metrics.AP)} to ${formatAp(run.metrics.AP + worst.alone)}.`;
}

/** Whether to train or to decode better, if the network is known. */
function groupingNote(run) {
  if (run.perfectGrouping === null) return null;
  return element("p", { class: "muted", id: "grouping" },
    `The network's own keypoint candidates, grouped perfectly, have AP ${formatAp(run.perfectGrouping)}: `
    + `a better decoder can gain at most ${formatGain(run.perfectGrouping - run.metrics.AP)}; training must gain the rest.`);
}

function costBar(run, rows) {
  const ap = Math.max(run.metrics.AP, 0);
  const parts = [{ kind: "ap", label: "AP", start: 0, size: ap, text: formatAp(run.metrics.AP) }];
  for (const { kind, before, gain } of rows) {
    parts.push({ kind, label: KINDS[kind].label, start: before, size: Math.max(gain, 0), text: formatGain(gain) });
  }
  const end = rows.at(-1).after;
  const label = parts.map((part) => `${part.label} ${part.text}`).join(", ");
  const drawn = chart((width) => drawCostBar(width, parts, end, label));
  drawn.id = "cost-bar";
  return element("figure", { class: "cost" }, drawn, element("figcaption", { class: "muted" },
    "The AP, and what it gains as the errors are corrected one kind on top of the other, from left to right."));
}

function drawCostBar(width, parts, end, label) {
  const height = 58;
  const svg = canvas(width, height + 24, label);
  const x = scale([0, 1], [0, width]);
  svg.append(shape("rect", { class: "rest", x: 0.5, y: 0.5, width: width - 1, height: height - 1, rx: 4 }));
  for (const { kind, label: name, start, size, text } of parts) {
    if (size < 1e-4) continue;
    const left = x(start);
    const widthOnScreen = x(size);
    const part = shape("g", { class: `part ${kind}` },
      shape("title", {}, `${name} ${text}`),
      shape("rect", { x: left, y: 0, width: Math.max(widthOnScreen - 1, 1), height }));
    if (widthOnScreen > 8 * Math.max(name.length, text.length) + 14) {
      part.append(
        shape("text", { class: "part-name", x: left + 9, y: 24 }, name),
        shape("text", { class: "part-value", x: left + 9, y: 43 }, text));
    } else if (widthOnScreen > 8 * text.length + 8) {
      part.append(shape("text", { class: "part-value", x: left + 5, y: 34 }, text));
    }
    svg.append(part);
  }
  for (const tick of [0, 0.2, 0.4, 0.6, 0.8, 1]) {
    const anchor = { 0: "start", 1: "end" }[tick] ?? "middle";
    svg.append(shape("text", { class: "tick", x: x(tick), y: height + 18, "text-anchor": anchor }, tick.toFixed(1)));
  }
  return svg;
}

function costTable(run, rows) {
  const largest = Math.max(...rows.map((row) => Math.max(row.gain, row.alone)), 1e-6);
  const bar = (kind, value) => stackedBar([[kind, Math.max(value, 0)]], largest, formatGain(value), 8);
  const body = rows.map(({ kind, gain, alone }) => element("tr", { class: "cost-row" },
    element("th", { scope: "row" }, swatch(kind), KINDS[kind].label,
      element("p", { class: "help" }, KINDS[kind].help)),
    element("td", { "data-label": "In turn" }, element("span", { class: "number" }, formatGain(gain)), bar(kind, gain)),
    element("td", { "data-label": "Alone" }, element("span", { class: "number" }, formatGain(alone)), bar(kind, alone)),
    element("td", { "data-label": "Found" }, element("span", { class: "number" }, occurrences(run, kind))),
    element("td", { class: "action" }, element("button", {
      type: "button", class: "link",
      "aria-label": `Show images with ${KINDS[kind].label} errors`,
      click: () => showSection("gallery", { kind, keypoint: "any" }),
    }, "images"))));
  return element("table", { class: "costs", id: "costs" },
    element("thead", {}, element("tr", {},
      element("th", { scope: "col" }, "Kind of error"),
      element("th", { scope: "col" }, "AP gained in turn"),
      element("th", { scope: "col" }, "AP gained alone"),
      element("th", { scope: "col" }, "Found"),
      element("td", {}))),
    element("tbody", {}, body));
}

// Several results files side by side: the difference of the AP with its interval, what changed, and where.

const GROUP_LABELS = { keypoint: "Share of good keypoints", count: "Numbers of keypoints, results and people" };
/** Rows of a table of changes: the largest ones. */
const SHOWN_CHANGES = 8;

function drawComparison(data) {
  const intervals = chart((width) => drawIntervals(width, data.comparison));
  intervals.id = "interval-chart";
  return [
    ...data.comparison.map((difference) => element("p", { class: "headline" }, judgement(difference))),
    element("figure", {}, intervals, element("figcaption", { class: "muted" },
      `Difference of the AP from ${data.runs[0].name}, with the interval that holds 95 % of `
      + `${formatCount(data.comparison[0].resamples)} resamples of the images. `
      + "An interval that includes 0 may be chance.")),
    drawRunTables(data),
    data.comparison.map((difference, index) => element("div", { class: "file-changes" },
      data.comparison.length > 1 ? element("h3", {}, difference.name) : null,
      element("div", { class: "changes" }, drawChanges(difference)),
      drawChangedImages(data, difference, index + 1))),
  ];
}

function judgement({ name, ap, interval }) {
  const [low, high] = interval;
  if (low > 0) return `${name} is better: ${formatGain(ap)} AP.`;
  if (high < 0) return `${name} is worse: ${formatGain(ap)} AP.`;
  return `${name} differs by ${formatGain(ap)} AP, which may be chance.`;
}

function drawIntervals(width, differences) {
  const rowHeight = 44;
  const height = differences.length * rowHeight + 56;
  const reach = Math.max(0.002, ...differences.flatMap(({ interval, ap }) => [...interval, ap].map(Math.abs))) * 1.15;
  const svg = canvas(width, height, differences.map(({ name, ap, interval }) =>
    `${name}: ${formatGain(ap)}, interval ${interval.map(formatGain).join(" to ")}`).join("; "));
  const x = scale([-reach, reach], [12, width - 12]);
  const bottom = differences.length * rowHeight + 12;
  const step = roundTicks(reach / 1.2, 2)[1];
  for (const tick of [-2, -1, 0, 1, 2].map((count) => count * step).filter((value) => Math.abs(value) <= reach)) {
    svg.append(
      shape("line", { class: tick === 0 ? "axis" : "grid", x1: x(tick), x2: x(tick), y1: 6, y2: bottom }),
      shape("text", { class: "tick", x: x(tick), y: bottom + 18, "text-anchor": "middle" }, formatGain(tick)));
  }
  differences.forEach(({ name, ap, interval }, row) => {
    const middle = row * rowHeight + 32;
    const side = interval[0] > 0 ? "better" : interval[1] < 0 ? "worse" : "unsure";
    svg.append(shape("g", { class: `interval ${side}` },
      shape("line", { x1: x(interval[0]), x2: x(interval[1]), y1: middle, y2: middle }),
      interval.map((end) => shape("line", { x1: x(end), x2: x(end), y1: middle - 6, y2: middle + 6 })),
      shape("circle", { cx: x(ap), cy: middle, r: 6 }),
      shape("text", { class: "series", x: 0, y: middle - 13 },
        `${formatGain(ap)}  [${interval.map(formatGain).join(", ")}]  ${shorten(name, (width - 190) / 8)}`)));
  });
  svg.append(shape("text", { class: "axis-title", x: width / 2, y: bottom + 38, "text-anchor": "middle" },
    "worse  ←  difference of the AP  →  better"));
  return svg;
}

function shorten(text, length) {
  return text.length <= length ? text : `${text.slice(0, Math.max(Math.floor(length) - 1, 1))}…`;
}

/** The metrics and the costs of the errors, the first file beside the others. */
function drawRunTables(data) {
  const costs = data.runs.map((run) => Object.fromEntries(corrections(run).map(({ kind, gain }) => [kind, gain])));
  const metrics = Object.keys(data.runs[0].metrics);
  return element("div", { class: data.runs.length > 2 ? "stacked" : "pair", id: "run-tables" },
    drawRunTable(data, "Metrics", 1, metrics.map((name) => [name, data.runs.map((run) => run.metrics[name])])),
    drawRunTable(data, "AP that each kind of error costs", -1, CORRECTIONS.map((kind) =>
      [[swatch(kind), KINDS[kind].label], costs.map((cost) => cost[kind])])));
}

/** `better` is 1 if larger values are better, -1 if smaller ones are. */
function drawRunTable(data, title, better, rows) {
  const cells = (values) => values.map((value, run) => element("td", { class: "number" }, formatAp(value), " ",
    run === 0 ? null : signedDifference(value - values[0], Math.sign(value - values[0]) * better)));
  return element("figure", { class: "scroll" }, element("h3", {}, title), element("table", { class: "numbers" },
    element("thead", {}, element("tr", {}, element("td", {}),
      data.runs.map((run) => element("th", { scope: "col" }, run.name)))),
    element("tbody", {}, rows.map(([name, values]) =>
      element("tr", {}, element("th", { scope: "row" }, name), cells(values))))));
}

/** A difference with an arrow: up if it is better (`direction` above 0), down if worse. */
function signedDifference(difference, direction, format = formatGain) {
  if (Math.abs(difference) < 0.0005) return element("span", { class: "difference muted" }, "=");
  return element("span", { class: `difference strong ${direction > 0 ? "better" : "worse"}` },
    `${direction > 0 ? "▲" : "▼"} ${format(difference)}`);
}

/** The other numbers that changed, group by group. */
function drawChanges({ changes }) {
  const others = changes.filter(({ group }) => group !== "metric" && group !== "cost");
  return [...Map.groupBy(others, (change) => change.group)].map(([group, all]) => {
    const isCount = group === "count";
    const value = isCount ? formatCount : formatAp;
    return element("figure", { class: "factor" },
      element("h3", {}, GROUP_LABELS[group] ?? `AP by ${group}`),
      element("table", {}, element("tbody", {}, all.slice(0, SHOWN_CHANGES).map(({ name, before, after, improved }) =>
        element("tr", {},
          element("th", { scope: "row" }, readableName(KINDS[name]?.label ?? name)),
          element("td", { class: "number muted" }, `${value(before)} → ${value(after)}`),
          element("td", { class: "number" },
            signedDifference(after - before, improved ? 1 : -1, isCount ? formatSignedCount : formatGain)))))));
  });
}

/** Before and after of the images that changed most; `run` is the index of the other results file. */
function drawChangedImages(data, difference, run) {
  const galleryImages = new Map(data.gallery.map((image) => [image.id, image]));
  const changed = difference.images.filter(({ id }) => galleryImages.has(id)).slice(0, 12);
  if (!changed.length) return null;
  const view = { ...DEFAULT_VIEW, truth: "0", errors: "0" };
  return element("figure", {}, element("h3", {}, "Images that changed most"),
    element("div", { class: "changed", id: "changed" }, changed.map(({ id, before, after }) => {
      const image = galleryImages.get(id);
      const better = after > before;
      return element("a", {
        class: "change", "data-image": id, "aria-label": `Open ${image.file}`,
        href: addressOf({ ...DEFAULT_VIEW, run: String(run), order: "changed", image: String(id) }),
      },
      element("span", { class: "two" }, drawImage(data, image, 0, view), drawImage(data, image, run, view)),
      element("span", { class: "caption" }, element("span", { class: "file", title: image.file }, image.file),
        element("span", { class: `number strong ${better ? "better" : "worse"}` },
          `${better ? "▲" : "▼"} ${formatGain(after - before)} OKS`)));
    })),
    element("figcaption", { class: "muted" },
      `Left ${data.runs[0].name}, right ${difference.name}; the change is the sum over the people of the image.`));
}

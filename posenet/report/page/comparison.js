// Several results files side by side: the difference of the AP with its interval, what changed, and where.

const GROUP_LABELS = { metric: "Metrics", cost: "AP that an error costs", keypoint: "Good keypoints, share" };

function drawComparison(data) {
  const intervals = chart((width) => drawIntervals(width, data.comparison));
  intervals.id = "interval-chart";
  return [
    element("p", { class: "headline" }, data.comparison.map(judgement).join(" ")),
    element("figure", {}, intervals, element("figcaption", { class: "muted" },
      `Difference of the AP from ${data.runs[0].name}, with the interval that holds 95 % of `
      + `${formatCount(data.comparison[0].resamples)} resamples of the images. `
      + "An interval that includes 0 may be chance.")),
    drawRunTable(data),
    data.comparison.map((difference) => element("div", { class: "difference" },
      data.comparison.length > 1 ? element("h3", {}, difference.name) : null,
      element("div", { class: "changes" }, drawChanges(difference)),
      drawChangedImages(data, difference))),
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
  for (const tick of [-0.8, -0.4, 0, 0.4, 0.8].map((share) => share * reach)) {
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
      shape("text", { class: "series", x: x(ap), y: middle - 13, "text-anchor": "middle" },
        `${name} ${formatGain(ap)}  [${interval.map(formatGain).join(", ")}]`)));
  });
  svg.append(shape("text", { class: "axis-title", x: width / 2, y: bottom + 38, "text-anchor": "middle" },
    "worse  ←  difference of the AP  →  better"));
  return svg;
}

/** All metrics and costs of all files. */
function drawRunTable(data) {
  const rows = [
    ...Object.keys(data.runs[0].metrics).map((name) => [name, data.runs.map((run) => formatAp(run.metrics[name]))]),
    ...CORRECTIONS.map((kind) => [`cost of ${KINDS[kind].label}`, data.runs.map((run) =>
      formatAp(Math.max(corrections(run).find((row) => row.kind === kind).gain, 0)))]),
  ];
  return element("div", { class: "scroll" }, element("table", { class: "numbers", id: "run-table" },
    element("thead", {}, element("tr", {}, element("td", {}),
      data.runs.map((run) => element("th", { scope: "col" }, run.name)))),
    element("tbody", {}, rows.map(([name, values]) => element("tr", {},
      element("th", { scope: "row" }, name), values.map((value) => element("td", {}, value)))))));
}

function drawChanges({ changes }) {
  const groups = Map.groupBy(changes, (change) => change.group);
  return [...groups].map(([group, all]) => {
    const largest = Math.max(...all.map(({ before, after }) => Math.abs(after - before)), 1e-9);
    return element("figure", { class: "factor" },
      element("h3", {}, GROUP_LABELS[group] ?? `AP by ${group}`),
      element("table", {}, element("tbody", {}, all.slice(0, 8).map(({ name, before, after, improved }) =>
        element("tr", {},
          element("th", { scope: "row" }, readableName(name)),
          element("td", { class: "number muted" }, `${formatAp(before)} → ${formatAp(after)}`),
          element("td", { class: `number strong ${improved ? "better" : "worse"}` },
            `${improved ? "▲" : "▼"} ${formatGain(after - before)}`),
          element("td", { class: "bars" },
            stackedBar([[improved ? "better" : "worse", Math.abs(after - before)]], largest, "", 8)))))));
  });
}

function drawChangedImages(data, difference) {
  const run = data.runs.findIndex((other) => other.name === difference.name);
  const byId = new Map(data.gallery.map((image) => [image.id, image]));
  const changed = difference.images.filter(({ id }) => byId.has(id)).slice(0, 12);
  if (!changed.length) return null;
  const view = { ...DEFAULT_VIEW, truth: "0", errors: "0" };
  return element("figure", {}, element("h3", {}, "Images that changed most"),
    element("div", { class: "changed", id: "changed" }, changed.map(({ id, before, after }) => {
      const image = byId.get(id);
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

// The table of keypoints, which can be sorted by each of its columns.

const KEYPOINT_COLUMNS = [
  { id: "name", label: "Keypoint" },
  { id: "labelled", label: "Labelled", title: "Labelled keypoints of matched people" },
  { id: "errors", label: "Errors", title: "Share of the labelled keypoints that are not good" },
  ...KEYPOINT_ERRORS.map((kind) => ({ id: kind, label: KINDS[kind].label, title: KINDS[kind].help, kind })),
];

function keypointRows(data, run) {
  return data.keypoints.map((name, index) => {
    const counts = Object.fromEntries(KEYPOINT_KINDS.map((kind, position) => [kind, run.keypoints[index][position]]));
    const labelled = sum(run.keypoints[index]);
    const errors = labelled ? 1 - counts.good / labelled : 0;
    return { ...counts, name, index, labelled, errors, position: index };
  });
}

/** Sort by the column named in the address; "-" first means from large to small. */
function sortRows(rows, sort) {
  const descending = sort.startsWith("-");
  const column = sort.replace(/^-/, "");
  const share = (row) => (KINDS[column] ? row[column] / Math.max(row.labelled, 1) : row[column]);
  const compare = (a, b) => (column === "name" ? a.name.localeCompare(b.name) : share(a) - share(b));
  const sorted = rows.toSorted((a, b) => compare(a, b) || a.position - b.position);
  return descending ? sorted.reverse() : sorted;
}

function drawKeypoints(data, run, view) {
  const known = KEYPOINT_COLUMNS.some((column) => column.id === view.sort.replace(/^-/, ""));
  const sort = known ? view.sort : DEFAULT_VIEW.sort;
  const rows = sortRows(keypointRows(data, run), sort);
  const headings = KEYPOINT_COLUMNS.map(({ id, label, title, kind }) => {
    const direction = sort === id ? "ascending" : sort === `-${id}` ? "descending" : "none";
    // A first click sorts numbers from large to small, and names from A to Z.
    const next = sort === `-${id}` || (id === "name" && sort !== id) ? id : `-${id}`;
    return element("th", { scope: "col", "aria-sort": direction, class: id === "name" ? null : "number" },
      element("button", { type: "button", title, "data-sort": id, click: () => show({ sort: next }) },
        kind ? swatch(kind) : null, label));
  });
  const body = rows.map((row) => element("tr", {},
    element("th", { scope: "row" }, readableName(row.name)),
    element("td", { class: "number", "data-label": "Labelled" }, formatCount(row.labelled)),
    element("td", { class: "number strong", "data-label": "Errors" }, formatShare(row.errors)),
    KEYPOINT_ERRORS.map((kind) => element("td", { class: "number", "data-label": KINDS[kind].label },
      element("button", {
        type: "button", class: "plain", disabled: row[kind] === 0,
        title: `${formatCount(row[kind])} of ${formatCount(row.labelled)}: show images`,
        click: () => showSection("gallery", { kind, keypoint: row.name }),
      }, row.labelled ? formatShare(row[kind] / row.labelled) : NOTHING))),
    element("td", { class: "share" }, stackedBar(
      ["good", ...KEYPOINT_ERRORS.toReversed()].map((kind) => [kind, row[kind]]), row.labelled,
      `${formatShare(row.errors)} errors`, 14))));
  return [
    legend(["good", ...KEYPOINT_ERRORS.toReversed()]),
    element("table", { class: "keypoints", id: "keypoint-table" },
      element("thead", {}, element("tr", {}, headings, element("th", { scope: "col", class: "share" }, "Share"))),
      element("tbody", {}, body)),
  ];
}

function legend(kinds) {
  return element("ul", { class: "legend" }, kinds.map((kind) =>
    element("li", { title: KINDS[kind].help }, swatch(kind), KINDS[kind].label)));
}

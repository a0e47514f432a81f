// How the AP and the errors depend on size, labelled keypoints, crowding, truncation and occlusion.

function drawSensitivity(data, run) {
  return [
    legend(["ap", ...KEYPOINT_ERRORS.toReversed()]),
    element("div", { class: "factors" }, run.sensitivity.map((factor) => drawFactor(data, factor))),
  ];
}

function drawFactor(data, factor) {
  const rows = factor.groups.map((group) => {
    const labelled = sum(group.counts);
    const share = (kind) => (labelled ? group.counts[KEYPOINT_KINDS.indexOf(kind)] / labelled : 0);
    const errors = KEYPOINT_ERRORS.toReversed().map((kind) => [kind, share(kind)]);
    const described = errors.map(([kind, value]) => `${KINDS[kind].label} ${formatShare(value)}`).join(", ");
    return element("tr", {},
      element("th", { scope: "row" }, groupLabel(factor, group),
        element("span", { class: "muted people" }, 
          `${pluralize(group.people, "person", "people")}, ${formatCount(group.missed)} missed`)),
      element("td", { class: "number strong" }, formatAp(group.AP)),
      element("td", { class: "bars", title: described },
        stackedBar([["ap", Math.max(group.AP, 0)]], 1, `AP ${formatAp(group.AP)}`, 12),
        stackedBar(errors, 1, described, 7)));
  });
  return element("figure", { class: "factor" },
    element("h3", {}, factor.label),
    element("table", {},
      element("thead", { class: "hidden" }, element("tr", {}, ["Group", "AP", "AP and share of errors"].map((text) =>
        element("th", { scope: "col" }, text)))),
      element("tbody", {}, rows)),
    element("figcaption", { class: "muted" }, factor.help));
}

/** A group that the gallery can filter by is a button. */
function groupLabel(factor, group) {
  if (!group.filter) return element("span", {}, group.label);
  return element("button", {
    type: "button", class: "link", title: "Show images",
    click: () => showSection("gallery", { [factor.filter]: group.filter }),
  }, group.label);
}

// Build the page from its data and keep it in step with its address.

/** The parts of the page, and the settings of the view on which each depends. */
const SECTIONS = [
  { id: "summary", label: "Summary", uses: ["run"], draw: drawSummary },
  { id: "comparison", label: "Comparison", uses: [], draw: drawComparison, applies: (data) => data.comparison.length > 0 },
  { id: "precision", label: "Precision", uses: ["run", "oks"], draw: drawPrecision },
  { id: "thresholds", label: "Thresholds", uses: ["run"], draw: drawThresholds },
  { id: "keypoints", label: "Keypoints", uses: ["run", "sort"], draw: drawKeypoints },
  { id: "sensitivity", label: "Sensitivity", uses: ["run"], draw: drawSensitivity },
  {
    id: "gallery", label: "Gallery", draw: drawGallery,
    uses: ["run", "kind", "keypoint", "size", "crowding", "order", "count", ...LAYERS.map(({ id }) => id)],
  },
];

function chosenRun(data, view) {
  const run = Number.parseInt(view.run, 10);
  return data.runs[run] ? run : 0;
}

/** Go to a section, with changes of the view. */
function showSection(id, changes = {}) {
  show({ ...changes, at: id });
  byId(id).scrollIntoView();
}

/** Draw the parts of the page that depend on what changed between two views; all of them if `before` is null. */
function drawPage(data, view, before) {
  const run = chosenRun(data, view);
  for (const { id, uses, draw } of SECTIONS) {
    const content = document.querySelector(`#${id} .content`);
    if (!content || (before && uses.every((name) => view[name] === before[name]))) continue;
    const args = id === "comparison" ? [data] : [data, data.runs[run], view, run];
    keepFocus(content, () => content.replaceChildren(...draw(...args).flat().filter(Boolean)));
  }
  byId("runs").replaceChildren(...drawRunChoice(data, run));
  drawOpenedImage(data, run, view);
}

function drawRunChoice(data, run) {
  if (data.runs.length === 1) return [];
  return [segmentedControl("Results", data.runs.map(({ name }, index) => [String(index), name]), String(run),
    (index) => show({ run: index }))];
}

function drawOpenedImage(data, run, view) {
  const viewer = byId("viewer");
  const opened = openedImage(data, run, view);
  if (opened) {
    keepFocus(viewer, () => viewer.replaceChildren(...drawViewer(data, run, view, opened)));
    viewer.dataset.image = opened.image.id;
    if (!viewer.open) openDialog(viewer);
  } else if (viewer.open) {
    viewer.close();
    viewer.replaceChildren();
    document.querySelector(`#tiles [data-image="${Number(viewer.dataset.image)}"]`)?.focus();
  }
}

/** Open a dialog and focus the dialog itself: browsers would focus its first button. */
function openDialog(dialog) {
  dialog.showModal();
  dialog.focus();
}

/** Draw anew, and focus the control that stands where the focused one stood. */
function keepFocus(container, draw) {
  const controls = () => [...container.querySelectorAll("a, button, select")];
  const index = controls().indexOf(document.activeElement);
  draw();
  if (index >= 0) controls()[index]?.focus({ preventScroll: true });
}

function main() {
  restoreTheme();
  const data = JSON.parse(byId("data").textContent);
  const names = data.runs.map((run) => run.name).join(", ");
  byId("title").textContent = names;
  document.title = `AP ${formatAp(data.runs[0].metrics.AP)} – ${names}`;
  byId("theme").addEventListener("click", toggleTheme);
  byId("open-help").addEventListener("click", () => openDialog(byId("help")));
  byId("help").append(...drawHelp());
  byId("viewer").addEventListener("cancel", (event) => {
    event.preventDefault();
    closeImage();
  });
  for (const { id, label, applies } of SECTIONS) {
    if (applies && !applies(data)) byId(id).remove();
    else byId("sections").append(element("button", { type: "button", click: () => showSection(id) }, label));
  }
  let before = null;
  const update = () => {
    const view = readAddress();
    drawPage(data, view, before);
    before = view;
  };
  addEventListener("hashchange", update);
  addEventListener("keydown", (event) => handleKey(data, event));
  update();
  if (SECTIONS.some(({ id }) => id === before.at)) byId(before.at)?.scrollIntoView();
}

main();

// The gallery: the worst images, those with chosen errors, and the filters.

/**
 * The errors of one run in an image: a list of { kind, keypoint, truth, result }.
 * `truth` and `result` are indices of people or -1, `keypoint` is an index or -1.
 */
function errorsOf(image, run) {
  const errors = [];
  const { people, missed } = image.runs[run];
  people.forEach((person, result) => {
    const { truth } = person;
    if (person.background) errors.push({ kind: "background", keypoint: -1, truth, result });
    if (person.misranked) errors.push({ kind: "score", keypoint: -1, truth, result });
    [...person.kinds].forEach((letter, keypoint) => {
      const kind = KIND_OF_LETTER[letter];
      if (kind && kind !== "good") errors.push({ kind, keypoint, truth, result });
    });
  });
  for (const truth of missed) errors.push({ kind: "missed", keypoint: -1, truth, result: -1 });
  return errors;
}

function filtersAreSet(view) {
  return ["kind", "keypoint", "size", "crowding"].some((name) => view[name] !== "any");
}

/** The images that the filters leave, worst first, each with the errors that match: [{ image, errors }]. */
function selectImages(data, run, view) {
  const keypoint = data.keypoints.indexOf(view.keypoint);
  const matches = (image, error) => {
    if (view.kind !== "any" && error.kind !== view.kind) return false;
    if (keypoint >= 0 && error.keypoint !== keypoint) return false;
    const person = image.truth[error.truth];
    if (view.size !== "any" && person?.size !== view.size) return false;
    return view.crowding === "any" || person?.crowding === view.crowding;
  };
  const chosen = data.gallery.map((image) => ({
    image, errors: errorsOf(image, run).filter((error) => matches(image, error)),
  }));
  const kept = filtersAreSet(view) ? chosen.filter(({ errors }) => errors.length > 0) : chosen;
  const loss = ({ image }) => image.runs[run].loss;
  const change = ({ image }) => Math.abs(image.runs[run].loss - image.runs[0].loss);
  if (view.order === "changed" && data.runs.length > 1) {
    const largest = ({ image }) => Math.max(...image.runs.map((other) => Math.abs(other.loss - image.runs[0].loss)));
    return kept.toSorted((a, b) => change(b) - change(a) || largest(b) - largest(a));
  }
  if (view.order === "file") return kept.toSorted((a, b) => a.image.file.localeCompare(b.image.file));
  if (filtersAreSet(view)) return kept.toSorted((a, b) => b.errors.length - a.errors.length || loss(b) - loss(a));
  return kept.toSorted((a, b) => loss(b) - loss(a));
}

/** The people of some errors, as the overlays name them. */
function peopleOf(errors) {
  const people = new Set();
  for (const { truth, result } of errors) {
    if (truth >= 0) people.add(`t${truth}`);
    if (result >= 0) people.add(`r${result}`);
  }
  return people;
}

function drawGallery(data, _, view, run) {
  const selected = selectImages(data, run, view);
  const count = Math.max(Number.parseInt(view.count, 10) || 0, 1);
  const tiles = selected.slice(0, count).map((item) => drawTile(data, run, view, item));
  return [
    drawFilters(data, view),
    drawLayerSwitches(view),
    ...notesOfAll(data).map((note) => element("p", { class: "note" }, note)),
    element("p", { class: "muted", id: "gallery-count", role: "status" }, describeSelection(data, selected, tiles.length)),
    element("div", { class: "tiles", id: "tiles" }, tiles, element("span", { class: "filler" })),
    tiles.length < selected.length
      ? element("button", {
        type: "button", class: "more", id: "more", click: () => show({ count: String(count + 24) }, { replace: true }),
      }, "Show more images")
      : null,
  ];
}

/** The note of all images, if there is one that all of them have. */
function notesOfAll(data) {
  const notes = new Set(data.gallery.map(({ note }) => note));
  return notes.size === 1 ? [...notes].filter(Boolean) : [];
}

function describeSelection(data, selected, shown) {
  const page = data.gallery.length === data.images ? "" : (
    ` The page holds ${formatCount(data.gallery.length)} of ${pluralize(data.images, "image")}: `
    + "the worst, and the worst of each kind of error.");
  if (!selected.length) return `No image matches the filters.${page}`;
  return `${formatCount(shown)} of ${pluralize(selected.length, "image")}.${page}`;
}

/** Numbers of errors below a tile: those of the most frequent kinds. */
const SHOWN_BADGES = 4;

function drawTile(data, run, view, { image, errors }) {
  const highlighted = filtersAreSet(view) ? peopleOf(errors) : null;
  const drawn = drawImage(data, image, run, view, { people: highlighted });
  const ratio = Math.min(Math.max(image.width / image.height, 0.4), 3);
  const numbers = new Map();
  for (const { kind } of errors) numbers.set(kind, (numbers.get(kind) ?? 0) + 1);
  const frequent = [...numbers].toSorted(([, a], [, b]) => b - a).slice(0, SHOWN_BADGES);
  const described = [...numbers].map(([kind, number]) => `${KINDS[kind].label}: ${number}`).join(", ");
  const badges = frequent.map(([kind, number]) => element("span", { class: "badge" }, swatch(kind), String(number)));
  return element("a", {
    class: "tile", href: addressOf({ ...view, image: String(image.id), person: "" }), "data-image": image.id,
    style: { "--ratio": String(ratio) }, "aria-label": `Open ${image.file}`,
  }, drawn, element("span", { class: "caption" },
    element("span", { class: "file", title: image.file }, image.file), element("span", { class: "badges", title: described }, badges)));
}

function drawFilters(data, view) {
  const kinds = [["any", "Any error"], ...CORRECTIONS.map((kind) => [kind, KINDS[kind].label])];
  const keypoints = [["any", "Any keypoint"], ...data.keypoints.map((name) => [name, readableName(name)])];
  const orders = [["worst", "Worst first"], ["file", "By file name"]];
  if (data.runs.length > 1) orders.splice(1, 0, ["changed", "Most changed first"]);
  return element("form", { class: "filters", id: "filters", submit: (event) => event.preventDefault() },
    drawSelect("kind", "Error", kinds, view),
    drawSelect("keypoint", "Keypoint", keypoints, view),
    drawSelect("size", "Size", [["any", "Any size"], ...data.sizes], view),
    drawSelect("crowding", "Crowding", [["any", "Any crowding"], ...data.crowdings], view),
    drawSelect("order", "Order", orders, view),
    element("button", {
      type: "button", class: "link", id: "clear", disabled: !filtersAreSet(view),
      click: () => show({ kind: "any", keypoint: "any", size: "any", crowding: "any", count: DEFAULT_VIEW.count }),
    }, "Clear filters"));
}

function drawSelect(name, label, choices, view) {
  const options = choices.map(([value, text]) => element("option", { value, selected: value === view[name] }, text));
  const select = element("select", {
    name, change: (event) => show({ [name]: event.target.value, count: DEFAULT_VIEW.count }),
  }, options);
  return element("label", {}, element("span", {}, label), select);
}

function drawLayerSwitches(view) {
  return element("div", { class: "layers", role: "group", "aria-label": "Overlays" }, LAYERS.map(({ id, label, key }) =>
    element("button", {
      type: "button", class: `layer-switch ${id}`, "aria-pressed": String(view[id] === "1"), "data-layer": id,
      title: `Key ${key}`, click: () => toggleLayer(id),
    }, element("span", { class: "sample", "aria-hidden": "true" }), label)));
}

function toggleLayer(id) {
  show({ [id]: readAddress()[id] === "1" ? "0" : "1" }, { replace: true });
}

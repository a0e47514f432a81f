// The opened image: large, with its people in a list, and with keys for everything.

/** The opened image and its neighbours in the gallery's order; null if none is open. */
function openedImage(data, run, view) {
  if (!view.image) return null;
  const selected = selectImages(data, run, view).map(({ image }) => image);
  const image = data.gallery.find((candidate) => String(candidate.id) === view.image);
  if (!image) return null;
  const position = selected.indexOf(image);
  return { image, position, total: selected.length, selected };
}

/** Open the image `step` places further in the gallery; the last is followed by the first. */
function stepImage(data, run, step) {
  const opened = openedImage(data, run, readAddress());
  if (!opened || !opened.total) return;
  const next = opened.position < 0 ? 0 : (opened.position + step + opened.total) % opened.total;
  show({ image: String(opened.selected[next].id), person: "" }, { replace: true });
}

function closeImage() {
  show({ image: "", person: "" });
}

function drawViewer(data, run, view, opened) {
  const { image, position, total } = opened;
  const person = Number.parseInt(view.person.slice(1), 10);
  const chosen = /^[tr]\d+$/.test(view.person)
    && (view.person[0] === "t" ? image.truth[person] : image.runs[run].people[person]);
  const people = chosen ? partners(image, run, view.person) : null;
  const frame = chosen ? frameAbout(image, run, people) : null;
  return [
    element("header", { class: "viewer-bar" },
      element("h2", { class: "file", title: image.file }, image.file),
      element("span", { class: "muted position" }, position < 0 ? "" : `${position + 1} of ${total}`),
      data.runs.length > 1
        ? segmentedControl("Results", data.runs.map((other, index) => [String(index), other.name]), String(run),
          (index) => show({ run: index }, { replace: true }))
        : null,
      iconButton("previous", "Previous image (arrow left)", "‹", () => stepImage(data, run, -1)),
      iconButton("next", "Next image (arrow right)", "›", () => stepImage(data, run, 1)),
      iconButton("close", "Close (Escape)", "×", closeImage)),
    element("div", { class: "viewer-body" },
      element("div", { class: "stage" }, drawImage(data, image, run, view, { people, frame })),
      element("aside", {},
        drawLayerSwitches(view),
        image.note ? element("p", { class: "note" }, image.note) : null,
        drawPeopleList(data, image, run, view))),
  ];
}

function iconButton(id, label, sign, click) {
  return element("button", { type: "button", class: "icon", id: `viewer-${id}`, "aria-label": label, title: label, click },
    sign);
}

/** A person and the one matched with it. */
function partners(image, run, name) {
  const index = Number.parseInt(name.slice(1), 10);
  const results = image.runs[run].people;
  const names = new Set([name]);
  if (name[0] === "r" && results[index].truth >= 0) names.add(`t${results[index].truth}`);
  if (name[0] === "t") results.forEach((result, other) => result.truth === index && names.add(`r${other}`));
  return names;
}

/** The part of the image about some people. */
function frameAbout(image, run, names) {
  const keypoints = [...names].flatMap((name) => {
    const list = name[0] === "t" ? image.truth : image.runs[run].people;
    return list[Number.parseInt(name.slice(1), 10)].keypoints;
  });
  const [x, y, width, height] = extent(keypoints, 0);
  const margin = 0.25 * Math.max(width, height) + 8;
  return [x - margin, y - margin, width + 2 * margin, height + 2 * margin];
}

function drawPeopleList(data, image, run, view) {
  const results = image.runs[run].people;
  const missed = new Set(image.runs[run].missed);
  const matched = new Set(results.map((result) => result.truth));
  const truths = image.truth.map((person, index) => ({ person, index })).filter(({ index }) => !matched.has(index));
  const rows = [
    ...results.map((result, index) => personRow(view, `r${index}`, `Result ${index + 1}`, [
      ["score", result.score.toFixed(3)], ["OKS", result.oks.toFixed(3)],
      ...(result.ignored ? [["", "in a crowd region, which does not count"]] : describeTruth(image.truth[result.truth])),
    ], [
      ...(result.background ? ["background"] : []), ...(result.misranked ? ["score"] : []),
    ], wrongKeypoints(data, result))),
    ...truths.map(({ person, index }) => personRow(view, `t${index}`, "Annotated person", describeTruth(person),
      missed.has(index) ? ["missed"] : [], [])),
  ];
  if (!rows.length) return element("p", { class: "muted" }, "Nobody is annotated here, and nobody was found.");
  return element("ol", { class: "people-list" }, rows);
}

function describeTruth(person) {
  if (!person) return [["", "matches nobody"]];
  const words = [person.size, `${person.labelled} labelled`];
  if (person.crowding !== "0") words.push(`${person.overlaps} overlapping`);
  if (person.truncated) words.push("truncated");
  return [["", words.join(", ")]];
}

function wrongKeypoints(data, result) {
  return [...result.kinds]
    .map((letter, keypoint) => ({ kind: KIND_OF_LETTER[letter], name: data.keypoints[keypoint] }))
    .filter(({ kind }) => kind && kind !== "good");
}

function personRow(view, name, title, facts, kinds, wrong) {
  const pressed = view.person === name;
  const button = element("button", {
    type: "button", class: "person-row", "aria-pressed": String(pressed), "data-person": name,
    title: "Enlarge this person",
    click: () => show({ person: pressed ? "" : name }, { replace: true }),
  },
  element("span", { class: "person-title" }, title,
    kinds.map((kind) => element("span", { class: "tag" }, swatch(kind), KINDS[kind].label))),
  element("span", { class: "facts" }, facts.map(([label, value]) =>
    element("span", {}, label ? element("span", { class: "muted" }, `${label} `) : null, value))),
  wrong.length ? element("span", { class: "wrong" }, wrong.map(({ kind, name: keypoint }) =>
    element("span", { class: "tag", title: KINDS[kind].label }, swatch(kind), readableName(keypoint)))) : null);
  return element("li", {}, button);
}

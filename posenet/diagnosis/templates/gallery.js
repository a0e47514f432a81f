"use strict";
// Filters, layers and the opened image. The state is in the address after the #, so that a view can be kept and sent.

const DEFAULTS = {
  kind: "any", keypoint: "any", size: "any", order: "worst", count: "24",
  truth: "1", result: "1", errors: "1", boxes: "0", pixels: "1", low: "0",
  image: "", // id of the opened image
  person: "", // the person to whom it is enlarged
};
const FILTERS = ["kind", "keypoint", "size"];
const UNFILTERED = Object.fromEntries([...FILTERS, "count", "image", "person"].map((name) => [name, DEFAULTS[name]]));
const LAYERS = { t: "truth", r: "result", e: "errors", b: "boxes", i: "pixels", l: "low" };
/** Whether a result is drawn: those with low scores are, if they are asked for, or if the filters ask for errors. */
const isDrawn = (person, view) => !person.classList.contains("low") || view.low !== "0" || isFiltered(view);
const byId = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
const form = byId("filters");
const viewer = byId("viewer");
const tiles = all("#tiles .tile");

/** The view in the address; unknown names are ignored. */
function readView() {
  const view = { ...DEFAULTS };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (Object.hasOwn(DEFAULTS, name)) view[name] = value;
  }
  return view;
}

/** Go to a view that differs from the present one. With `replace`, Back skips the present one. */
function show(changes, replace = false) {
  const view = Object.entries({ ...readView(), ...changes });
  // The order is always named: browsers scroll to the top at an empty address.
  const address = `#${new URLSearchParams(view.filter(([name, value]) => name === "order" || value !== DEFAULTS[name]))}`;
  if (replace) location.replace(address);
  else location.hash = address;
}

const isFiltered = (view) => FILTERS.some((name) => view[name] !== "any");

/** The people of a tile with an error that the filters ask for. */
function peopleWithErrors(tile, view) {
  const keypoint = [...form.elements.keypoint.options].findIndex(({ value }) => value === view.keypoint) - 1;
  const isAsked = (error) => {
    const [kind, index] = error.split(":");
    return (view.kind === "any" || kind === view.kind) && (view.keypoint === "any" || Number(index) === keypoint);
  };
  return all(".person", tile).filter(({ dataset }) =>
    dataset.errors.split(" ").some((error) => error && isAsked(error))
    && (view.size === "any" || dataset.size === view.size));
}

/** The tiles that the filters leave, in the chosen order. Other people than those asked for become faint. */
function selectTiles(view) {
  const chosen = tiles.map((tile) => {
    const people = peopleWithErrors(tile, view);
    const names = new Set(people.flatMap(({ dataset }) => [dataset.person, dataset.partner]));
    for (const person of all(".person", tile)) {
      person.classList.toggle("undrawn", !isDrawn(person, view));
      person.classList.toggle("faint", isFiltered(view) && !names.has(person.dataset.person));
    }
    return { tile, errors: people.length, loss: Number(tile.dataset.loss) };
  }).filter(({ errors }) => errors > 0 || !isFiltered(view));
  const orders = {
    file: (a, b) => a.tile.dataset.name.localeCompare(b.tile.dataset.name),
    worst: (a, b) => (isFiltered(view) && b.errors - a.errors) || b.loss - a.loss,
  };
  return chosen.sort(orders[view.order] ?? orders.worst).map(({ tile }) => tile);
}

/** Show the view that the address asks for. */
function update() {
  const view = readView();
  for (const control of form.elements) {
    if (control.type === "checkbox") control.checked = view[control.name] !== "0";
    else if (control.name) control.value = view[control.name];
  }
  for (const layer of Object.values(LAYERS)) document.body.classList.toggle(`no-${layer}`, view[layer] === "0");
  const selected = selectTiles(view);
  const shown = selected.slice(0, Math.max(Number.parseInt(view.count, 10) || 0, 1));
  const focused = document.activeElement;
  byId("tiles").append(...selected);
  for (const tile of tiles) tile.hidden = !shown.includes(tile);
  if (shown.includes(focused)) focused.focus({ preventScroll: true }); // a browser takes it from what moves
  byId("gallery-count").textContent = selected.length
    ? `${shown.length} of ${selected.length} images` : "No image matches the filters.";
  byId("more").hidden = shown.length === selected.length;
  openImage(view, selected);
}

/** Show the opened image with a list of its people, or close the viewer. */
function openImage(view, selected) {
  const tile = tiles.find(({ dataset }) => dataset.image === view.image);
  if (!tile) {
    if (!viewer.open) return;
    viewer.close();
    tiles.find(({ dataset }) => dataset.image === viewer.dataset.image).focus();
    return;
  }
  if (!viewer.open) {
    viewer.showModal();
    viewer.focus(); // browsers would focus the first button
  }
  viewer.dataset.image = view.image;
  viewer.querySelector("h2").textContent = tile.dataset.name;
  viewer.querySelector(".note").textContent = tile.dataset.note;
  const position = selected.indexOf(tile);
  byId("position").textContent = position < 0 ? "" : `${position + 1} of ${selected.length}`;
  const picture = tile.querySelector(".image").cloneNode(true);
  viewer.querySelector(".stage").replaceChildren(picture);
  const people = all(".person", picture);
  listPeople(people, view);
  const chosen = people.find(({ dataset }) => dataset.person === view.person);
  if (chosen) enlarge(picture, people, chosen);
  const { width, height } = picture.viewBox.baseVal;
  // The size of a pixel of the screen in the frame of the image.
  picture.style.setProperty("--pixel", Math.max(width / picture.clientWidth, height / picture.clientHeight));
}

/** Show a person with its partner, the others faint. */
function enlarge(picture, people, { dataset }) {
  const names = [dataset.person, dataset.partner || dataset.person];
  const isPair = (person) => names.includes(person.dataset.person) || names.includes(person.dataset.partner);
  const boxes = people.filter(isPair).map((person) => person.getBBox());
  const left = Math.min(...boxes.map(({ x }) => x));
  const top = Math.min(...boxes.map(({ y }) => y));
  const width = Math.max(...boxes.map((box) => box.x + box.width)) - left;
  const height = Math.max(...boxes.map((box) => box.y + box.height)) - top;
  const margin = 0.2 * Math.max(width, height) + 20;
  picture.setAttribute("viewBox", [left - margin, top - margin, width + 2 * margin, height + 2 * margin].join(" "));
  for (const person of people) person.classList.toggle("faint", !isPair(person));
}

/** A button for each result, and for each annotated person who was not found, with what is wrong. */
function listPeople(people, view) {
  const named = new Map(people.map(({ dataset }) => [dataset.person, dataset]));
  const found = new Set([...named.values()].filter(({ person }) => person[0] === "r").map(({ partner }) => partner));
  const drawn = new Set(people.filter((person) => isDrawn(person, view)).map(({ dataset }) => dataset.person));
  const rows = [...named.values()].filter(({ person }) => drawn.has(person)).filter(({ person }) => person[0] === "r" || (person[0] === "t" && !found.has(person)));
  const list = viewer.querySelector("ol");
  list.replaceChildren(...rows.map(({ person, partner, facts, errors }) => {
    const row = document.createElement("li");
    const button = addText(row, "button", "");
    button.dataset.show = person;
    button.setAttribute("aria-pressed", person === view.person);
    addText(button, "strong", `${person[0] === "r" ? "Result" : list.dataset.name} ${Number(person.slice(1)) + 1}`);
    addText(button, "span", [facts, named.get(partner)?.facts].filter(Boolean).join("; "));
    for (const error of errors.split(" ").filter(Boolean)) {
      const [kind, keypoint] = error.split(":");
      const kinds = [...form.elements.kind.options];
      const option = keypoint ? form.elements.keypoint.options[Number(keypoint) + 1] : kinds.find(({ value }) => value === kind);
      const tag = addText(button, "span", "");
      addText(tag, "span", "").className = `swatch ${kind}`;
      tag.append(option.text);
    }
    return row;
  }));
}

function addText(parent, tag, text) {
  const node = document.createElement(tag);
  node.textContent = text;
  parent.append(node);
  return node;
}

/** Open the image `step` places further; the last is followed by the first. */
function stepImage(step) {
  const selected = selectTiles(readView());
  const position = selected.findIndex(({ dataset }) => dataset.image === readView().image);
  const next = selected.at((position + step) % selected.length);
  if (next) show({ image: next.dataset.image, person: "" }, true);
}

function enlargeNext() {
  const names = ["", ...all("[data-show]", viewer).map(({ dataset }) => dataset.show)];
  show({ person: names[(names.indexOf(readView().person) + 1) % names.length] }, true);
}

document.addEventListener("click", (event) => {
  const node = event.target.closest("a, button");
  const { step, show: person } = node?.dataset ?? {};
  if (step) stepImage(Number(step));
  else if (person) show({ person: person === readView().person ? "" : person }, true);
  else if (node?.id === "close") show({ image: "", person: "" });
  else if (node?.id === "more") show({ count: String(Number(readView().count) + Number(DEFAULTS.count)) }, true);
  if (node?.tagName !== "A") return;
  event.preventDefault();
  if (node.closest("nav")) byId(node.hash.slice(1)).scrollIntoView();
  else if (node.closest("#tiles")) show({ image: node.dataset.image, person: "" });
  else {
    show({ ...UNFILTERED, ...Object.fromEntries(new URLSearchParams(node.hash.slice(1))) });
    byId("gallery").scrollIntoView();
  }
});
document.addEventListener("change", ({ target }) => {
  if (target.form !== form) return;
  const value = target.type === "checkbox" ? String(Number(target.checked)) : target.value;
  show({ [target.name]: value, count: DEFAULTS.count });
});
form.addEventListener("reset", (event) => {
  event.preventDefault();
  show(UNFILTERED);
});
viewer.addEventListener("cancel", (event) => {
  event.preventDefault();
  show({ image: "", person: "" });
});
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("select")) return;
  const layer = LAYERS[event.key.toLowerCase()];
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (layer) show({ [layer]: readView()[layer] === "0" ? "1" : "0" }, true);
  else if (viewer.open && step) stepImage(step);
  else if (viewer.open && event.key.toLowerCase() === "z") enlargeNext();
});
addEventListener("hashchange", update);
addEventListener("resize", () => viewer.open && update());
document.documentElement.classList.add("scripted");
update();

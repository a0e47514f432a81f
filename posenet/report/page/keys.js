// Keys of the whole page.

function handleKey(data, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("select, input, textarea")) return;
  if (byId("help").open) return; // the browser closes it on Escape
  const view = readAddress();
  const run = chosenRun(data, view);
  const action = keyAction(data, run, view, event);
  if (!action) return;
  event.preventDefault();
  action();
}

/** The action of a key, or null. */
function keyAction(data, run, view, { key }) {
  const layer = LAYERS.find((candidate) => candidate.key === key.toLowerCase());
  if (layer) return () => toggleLayer(layer.id);
  if (key === "?") return () => openDialog(byId("help"));
  if (key.toLowerCase() === "d") return toggleTheme;
  if (/^[1-9]$/.test(key) && Number(key) <= data.runs.length) {
    return () => show({ run: String(Number(key) - 1) }, { replace: true });
  }
  const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 };
  if (openedImage(data, run, view)) {
    if (key in steps) return () => stepImage(data, run, steps[key]);
    if (key.toLowerCase() === "z") return () => enlargeNext(data, run, view);
    return null;
  }
  const tile = document.activeElement.closest(".tile");
  if (tile && key in steps) return () => focusTile(tile, key);
  return null;
}

function enlargeNext(data, run, view) {
  const names = [...document.querySelectorAll("#viewer [data-person]")].map((row) => row.dataset.person);
  show({ person: names[names.indexOf(view.person) + 1] ?? "" }, { replace: true });
}

/** Move the focus from a tile to its neighbour on the left or right, or to the nearest in the row above or below. */
function focusTile(tile, key) {
  const tiles = [...document.querySelectorAll("#tiles .tile")];
  const index = tiles.indexOf(tile);
  if (key === "ArrowLeft" || key === "ArrowRight") {
    tiles[index + (key === "ArrowLeft" ? -1 : 1)]?.focus();
    return;
  }
  const here = tile.getBoundingClientRect();
  const centre = (box) => box.left + box.width / 2;
  const below = key === "ArrowDown";
  const candidates = tiles
    .map((other) => ({ other, box: other.getBoundingClientRect() }))
    .filter(({ box }) => (below ? box.top >= here.bottom - 1 : box.bottom <= here.top + 1))
    .toSorted((a, b) => Math.abs(a.box.top - here.top) - Math.abs(b.box.top - here.top)
      || Math.abs(centre(a.box) - centre(here)) - Math.abs(centre(b.box) - centre(here)));
  candidates[0]?.other.focus();
}

// The state of the page is in its address, after the #, so that each view can be kept, sent and returned to.

const DEFAULT_VIEW = {
  run: "0", // index of the results file
  oks: "mean", // OKS threshold of the precision-recall chart
  sort: "-errors", // column of the keypoint table; "-" first: largest first
  kind: "any", // filters of the gallery
  keypoint: "any",
  size: "any",
  crowding: "any",
  order: "worst", // or "changed", "file"
  count: "24", // tiles shown
  truth: "1", // overlays
  result: "1",
  errors: "1",
  boxes: "0",
  pixels: "1",
  image: "", // id of the opened image
  person: "", // index of the person that the opened image is enlarged to
  at: "", // section
};

/** The view in the address; unknown names and broken escapes are ignored. */
function readAddress() {
  const view = { ...DEFAULT_VIEW };
  for (const [name, value] of new URLSearchParams(location.hash.slice(1))) {
    if (Object.hasOwn(DEFAULT_VIEW, name)) view[name] = value;
  }
  return view;
}

/**
 * The address of a view; settings with their default value are left out. The results file is always there, because
 * a browser would scroll to the top at an empty address.
 */
function addressOf(view) {
  const changed = Object.entries(view).filter(([name, value]) => name === "run" || value !== DEFAULT_VIEW[name]);
  return `#${new URLSearchParams(changed)}`;
}

/** Go to a view that differs from the present one. With `replace`, Back skips the present one. */
function show(changes, { replace = false } = {}) {
  const address = addressOf({ ...readAddress(), ...changes });
  if (address === location.hash) return;
  if (replace) location.replace(address);
  else location.hash = address;
}

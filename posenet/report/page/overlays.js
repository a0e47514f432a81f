// An image with its people as SVG: the truth, the results, their errors and boxes, each a layer.

const LAYERS = [
  { id: "truth", label: "Truth", key: "t" },
  { id: "result", label: "Result", key: "r" },
  { id: "errors", label: "Errors", key: "e" },
  { id: "boxes", label: "Boxes", key: "b" },
  { id: "pixels", label: "Image", key: "i" },
];

/**
 * Draw an image with those layers that the view switches on.
 * `people` holds those to draw at full strength, as "t3" or "r0" (a true person, a result); null means all.
 * `frame` is the part of the image to show, as x, y, width, height.
 */
function drawImage(data, image, run, view, { people = null, frame = null, label = image.file } = {}) {
  const [x, y, width, height] = frame ?? [0, 0, image.width, image.height];
  const svg = shape("svg", {
    class: "image", viewBox: `${x} ${y} ${width} ${height}`, role: "img", "aria-label": label,
    // Lines and marks keep their size on the screen, whatever the size of the image.
    style: { "--unit": String(Math.max(width, height) / 400) },
  });
  svg.append(shape("rect", { class: "ground", x: 0, y: 0, width: image.width, height: image.height }));
  if (view.pixels === "1" && image.jpeg) {
    svg.append(shape("image", {
      href: `data:image/jpeg;base64,${image.jpeg}`, x: 0, y: 0, width: image.width, height: image.height,
      preserveAspectRatio: "none",
    }));
  }
  const results = image.runs[run].people;
  const strength = (name) => (people === null || people.has(name) ? "" : " faint");
  if (view.boxes === "1") {
    const boxes = image.truth.map((person, index) => {
      const [left, top, boxWidth, boxHeight] = person.box;
      return shape("rect", { class: `box${strength(`t${index}`)}`, x: left, y: top, width: boxWidth, height: boxHeight });
    });
    const ignored = image.ignored.map(([left, top, boxWidth, boxHeight]) =>
      shape("rect", { class: "box ignored", x: left, y: top, width: boxWidth, height: boxHeight },
        shape("title", {}, "Crowd or unlabelled person: neither right nor wrong")));
    svg.append(shape("g", { class: "layer boxes" }, boxes, ignored));
  }
  if (view.truth === "1") {
    svg.append(shape("g", { class: "layer truth" }, image.truth.map((person, index) =>
      drawPerson(data, person.keypoints, `truth${strength(`t${index}`)}`))));
  }
  if (view.result === "1") {
    svg.append(shape("g", { class: "layer result" }, results.map((person, index) =>
      drawPerson(data, person.keypoints, `result${strength(`r${index}`)}`))));
  }
  if (view.errors === "1") {
    svg.append(shape("g", { class: "layer errors" }, drawErrors(image, run, strength, Math.max(width, height) / 400)));
  }
  return svg;
}

/** A person's limbs and keypoints. A keypoint that is null is not labelled, or was not found. */
function drawPerson(data, keypoints, className) {
  const middles = data.derived.map(([a, b]) => middle(keypoints[a], keypoints[b]));
  const points = [...keypoints, ...middles];
  const limbs = data.edges.filter(([a, b]) => points[a] && points[b]);
  const path = limbs.map(([a, b]) => `M${points[a].join(" ")}L${points[b].join(" ")}`).join("");
  const dots = keypoints.filter(Boolean).map(([x, y]) => `M${x} ${y}h0`).join("");
  return shape("g", { class: `person ${className}` },
    shape("path", { class: "casing", d: path }), shape("path", { class: "limbs", d: path }),
    shape("path", { class: "casing dots", d: dots }), shape("path", { class: "dots", d: dots }));
}

function middle(a, b) {
  return a && b ? [(a[0] + b[0]) / 2, (a[1] + b[1]) / 2] : null;
}

/** Marks at wrong keypoints, each kind with its own shape, joined to where the keypoint should be. */
function drawErrors(image, run, strength, unit) {
  const results = image.runs[run].people;
  const marks = [];
  results.forEach((person, index) => {
    const truth = image.truth[person.truth];
    const faint = strength(`r${index}`);
    if (person.background) marks.push(outline(person.keypoints, `background${faint}`, unit));
    if (!truth) return;
    [...person.kinds].forEach((letter, keypoint) => {
      const kind = KIND_OF_LETTER[letter];
      if (!kind || kind === "good") return;
      const [toX, toY] = truth.keypoints[keypoint];
      const [x, y] = person.keypoints[keypoint] ?? [toX, toY]; // not found at all
      marks.push(shape("g", { class: `mark ${kind}${faint}` },
        shape("line", { x1: x, y1: y, x2: toX, y2: toY }),
        errorMark(kind, x, y, unit * 4.5)));
    });
  });
  image.runs[run].missed.forEach((index) => {
    marks.push(outline(image.truth[index].keypoints, `missed${strength(`t${index}`)}`, unit));
  });
  return marks;
}

function errorMark(kind, x, y, r) {
  const paths = {
    jitter: `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0Z`,
    inversion: `M${x} ${y - 1.25 * r}L${x + 1.25 * r} ${y}L${x} ${y + 1.25 * r}L${x - 1.25 * r} ${y}Z`,
    swap: `M${x - r} ${y - r}h${2 * r}v${2 * r}h${-2 * r}Z`,
    miss: `M${x - r} ${y - r}l${2 * r} ${2 * r}M${x + r} ${y - r}l${-2 * r} ${2 * r}`,
  };
  return shape("path", { class: "sign", d: paths[kind] });
}

/** A frame about all keypoints of a person who has no partner. */
function outline(keypoints, className, unit) {
  const [x, y, width, height] = extent(keypoints, unit * 8);
  return shape("rect", { class: `frame ${className}`, x, y, width, height, rx: unit * 4 });
}

/** The box about the keypoints with a margin, as x, y, width, height. */
function extent(keypoints, margin) {
  const points = keypoints.filter(Boolean);
  if (!points.length) return [0, 0, 0, 0];
  const xs = points.map(([x]) => x);
  const ys = points.map(([, y]) => y);
  const left = Math.min(...xs) - margin;
  const top = Math.min(...ys) - margin;
  return [left, top, Math.max(...xs) + margin - left, Math.max(...ys) + margin - top];
}

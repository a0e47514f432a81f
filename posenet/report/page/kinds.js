// The kinds of error: their names, and one sentence that explains each. Their colours are in style.css.

const KINDS = {
  ap: { label: "AP", help: "The average precision of the results as they are." },
  good: { label: "Good", help: "The keypoint is where it should be: its similarity is at least 0.85." },
  miss: { label: "Miss", help: "The keypoint is far from where it should be, and on nobody else's either.", verdict: "Misses cost most" },
  swap: { label: "Swap", help: "The keypoint lies on the same or the mirrored keypoint of another person.", verdict: "Swaps cost most" },
  inversion: { label: "Inversion", help: "Left and right of the same person are exchanged.", verdict: "Inversions cost most" },
  jitter: { label: "Jitter", help: "The keypoint is near the right place but not exact: its similarity is 0.5 to 0.85.", verdict: "Jitter costs most" },
  score: { label: "Score", help: "The scores rank the results in another order than their true OKS. Counted are results whose rank is off by a quarter of the matched results or more.", verdict: "Badly ranked results cost most" },
  background: { label: "Background", help: "A result that matches no annotated person at the OKS threshold. It costs nothing in turn, because corrected scores rank it last.", verdict: "Background results cost most" },
  missed: { label: "Missed", help: "An annotated person whom no result matches at the OKS threshold: at high ones mostly inexact results.", verdict: "Missed people cost most" },
};

/** The kinds that a keypoint can have, in the order of the counts in the data. */
const KEYPOINT_KINDS = ["good", "jitter", "inversion", "swap", "miss"];
const KEYPOINT_ERRORS = ["miss", "swap", "inversion", "jitter"];
/** The order in which errors are corrected, one on top of the other. */
const CORRECTIONS = ["miss", "swap", "inversion", "jitter", "score", "background", "missed"];

/** The letters that stand for the kind of a keypoint in the data; a dot is an unlabelled keypoint. */
const KIND_OF_LETTER = { g: "good", j: "jitter", i: "inversion", s: "swap", m: "miss" };

function swatch(kind) {
  return element("span", { class: `swatch ${kind}`, "aria-hidden": "true" });
}

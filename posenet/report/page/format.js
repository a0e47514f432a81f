// Numbers as text. A value below 0 means that there was nothing to compute it from.

const NOTHING = "–";

function formatAp(value) {
  return value === null || value < 0 ? NOTHING : value.toFixed(3);
}

/** A difference of two APs with its sign. */
function formatGain(value) {
  if (value === null || Number.isNaN(value)) return NOTHING;
  const rounded = value.toFixed(3);
  if (Number(rounded) === 0) return "0.000";
  return value > 0 ? `+${rounded}` : rounded.replace("-", "−");
}

function formatCount(value) {
  return value.toLocaleString("en");
}

/** A difference of two counts with its sign. */
function formatSignedCount(value) {
  return (value > 0 ? "+" : "−") + formatCount(Math.abs(value));
}

function formatShare(value) {
  if (value > 0 && value < 0.001) return "<0.1 %";
  return `${(100 * value).toFixed(1)} %`;
}

function pluralize(count, noun, plural = `${noun}s`) {
  return `${formatCount(count)} ${count === 1 ? noun : plural}`;
}

/** `left_shoulder` as "left shoulder". */
function readableName(name) {
  return name.replaceAll("_", " ");
}

function sum(values) {
  return values.reduce((total, value) => total + value, 0);
}

function mean(values) {
  return sum(values) / values.length;
}

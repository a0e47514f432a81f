// Elements. Texts become text nodes, never markup, so names from files cannot break out.

const SVG_NAMESPACE = "http://www.w3.org/2000/svg";

/** Create an HTML element. Functions among the attributes listen to events; null leaves an attribute out. */
function element(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Create an SVG element. */
function shape(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG_NAMESPACE, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      node.addEventListener(name, value);
    } else if (name === "style") {
      for (const [property, setting] of Object.entries(value)) node.style.setProperty(property, setting);
    } else if (value !== null && value !== undefined && value !== false) {
      node.setAttribute(name, value === true ? "" : value);
    }
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

function byId(id) {
  return document.getElementById(id);
}

/** A row of buttons of which one is pressed. `choices` is a list of [value, label]. */
function segmentedControl(label, choices, chosen, choose) {
  const buttons = choices.map(([value, text]) =>
    element("button", { type: "button", "aria-pressed": String(value === chosen), click: () => choose(value) }, text));
  return element("div", { class: "segments", role: "group", "aria-label": label }, buttons);
}

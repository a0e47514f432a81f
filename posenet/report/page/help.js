// The window that explains the keys and the words.

const KEYS = [
  ["←  →  ↑  ↓", "go to another image, in the gallery and in the opened image"],
  ["Enter", "open the image"],
  ["Escape", "close the opened image or this window"],
  ...LAYERS.map(({ key, label }) => [key.toUpperCase(), `switch the overlay “${label}” on or off`]),
  ["Z", "enlarge the next person of the opened image"],
  ["1 – 9", "choose the results file, if there are several"],
  ["D", "dark or light"],
  ["?", "this window"],
];

function drawHelp() {
  return [
    element("header", { class: "viewer-bar" }, element("h2", {}, "Help"),
      element("button", {
        type: "button", class: "icon", "aria-label": "Close", click: () => byId("help").close(),
      }, "×")),
    element("h3", {}, "Keys"),
    element("dl", { class: "keys" }, KEYS.map(([key, text]) =>
      element("div", {}, element("dt", {}, element("kbd", {}, key)), element("dd", {}, text)))),
    element("h3", {}, "Kinds of error"),
    element("dl", { class: "keys" }, Object.entries(KINDS).map(([kind, { label, help }]) =>
      element("div", {}, element("dt", {}, swatch(kind), label), element("dd", {}, help)))),
    element("p", { class: "muted" },
      "The address of the page holds the filters, the sorting and the opened image: copy it to return to a view."),
  ];
}

// Elements made in one call, and words for those who listen.

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style" && typeof value === "object") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(
    ...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false),
  );
  return element;
}

/** h("button", {class: "tab", onclick: f}, "Graph") */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

/** A row of buttons of which one is pressed. `options`: [value, label]. */
export function choice(label, options, chosen, onchoose) {
  const group = h("div", { class: "choice", role: "group", "aria-label": label });
  const press = (value) => {
    for (const button of group.children) button.setAttribute("aria-pressed", String(button.value === value));
  };
  for (const [value, text] of options)
    group.append(h("button", { value, type: "button", onclick: () => (press(value), onchoose(value)) }, text));
  press(chosen);
  group.press = press;
  return group;
}

export function legend(kernels) {
  const kinds = [...new Set(kernels.map((k) => k.kind))].sort();
  return colours(
    "Colours of kinds of kernels",
    kinds.map((kind) => [kind, kind]),
  );
}

/** kinds: [kind, what it is] */
export function colours(label, kinds) {
  return h(
    "ul",
    { class: "legend", "aria-label": label },
    kinds.map(([kind, text]) => h("li", {}, h("i", { class: `dot kind-${kind}` }), text)),
  );
}

const speaker = h("div", { class: "unseen", role: "status", "aria-live": "polite" });

/** Screen readers say it. */
export function announce(text) {
  if (!speaker.isConnected) document.body.append(speaker);
  speaker.textContent = text;
}

const probe = h("span", { hidden: true });

/** A colour of the style sheet, in the theme that is on. */
export function colour(name) {
  if (!probe.isConnected) document.body.append(probe);
  probe.style.color = `var(--${name})`;
  return getComputedStyle(probe).color;
}

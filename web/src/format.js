// Numbers as text: three digits and a unit, as explain() prints them.

function digits(value) {
  if (value >= 1000) return String(Math.round(value));
  return Number(value.toPrecision(3)).toString();
}

function scaled(value, units, last) {
  for (const [factor, unit] of units) if (Math.abs(value) >= factor) return `${digits(value / factor)} ${unit}`;
  return last;
}

export function seconds(value) {
  const units = [
    [1, "s"],
    [1e-3, "ms"],
    [1e-6, "us"],
  ];
  return scaled(value, units, `${(value * 1e6).toFixed(2)} us`);
}

export function bytes(value) {
  return scaled(
    value,
    [
      [1e9, "GB"],
      [1e6, "MB"],
      [1e3, "kB"],
    ],
    `${value} B`,
  );
}

export function rate(value, unit) {
  return scaled(
    value,
    [
      [1e12, `T${unit}/s`],
      [1e9, `G${unit}/s`],
      [1e6, `M${unit}/s`],
      [1e3, `k${unit}/s`],
    ],
    `${digits(value)} ${unit}/s`,
  );
}

/** Three digits of any number; a word stays a word. */
export function number(value) {
  if (typeof value !== "number") return String(value);
  const small = value !== 0 && (Math.abs(value) < 1e-4 || Math.abs(value) >= 1e6);
  return small ? value.toExponential(2) : String(Number(value.toPrecision(3)));
}

/** Layers are equal but for their number: "h.3.attn" is "h.*.attn". */
export function layers(name) {
  return name.replace(/(?<=^|\.)\d+(?=\.|$)/g, "*");
}

export function percent(part, whole) {
  if (!whole) return "";
  const share = (100 * part) / whole;
  return `${share >= 10 || share === 0 ? Math.round(share) : share.toFixed(1)}%`;
}

export function count(value) {
  return value.toLocaleString("en-US");
}

export function plural(number, noun, many = `${noun}s`) {
  return `${count(number)} ${number === 1 ? noun : many}`;
}

/** "f32[1,128,768]" */
export function type(node) {
  return `${node.dtype}[${node.shape.join(",")}]`;
}

/** An op in words for people: only one has a name that says something else to them. */
export function opName(op) {
  return op === "undefined" ? "uninitialized memory" : op;
}

/** The text of a node of the IR, without its line, which has a place of its own. An input has its name there. */
export function nodeText({ text }) {
  if (text.includes(" = input ")) return text;
  return text.replace(/\s+#.*$/, "").replace(/ = undefined (?=\w+\[)/, " = uninitialized memory ");
}

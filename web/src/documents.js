// The diff tab: what to_json() of a difference says, as tables. Lists of objects are tables, the rest is
// listed by name.
import { h } from "./dom.js";
import { bytes, count, seconds } from "./format.js";

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const words = (name) => name.replaceAll("_", " ");

/** A number in the unit that its name says. */
function scalar(name, value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number") return String(value);
  if (/ratio/.test(name)) return `${value.toPrecision(3)}\u00d7`;
  if (/seconds|^time|^low$|^high$/.test(name)) return seconds(value);
  if (/bytes|memory|saves/.test(name)) return bytes(value);
  return Number.isInteger(value) ? count(value) : String(Number(value.toPrecision(4)));
}

const isPair = (value) =>
  Array.isArray(value) &&
  value.length === 2 &&
  !value.some((v) => v !== null && typeof v === "object" && !Array.isArray(v));
const plain = (name, value) => (Array.isArray(value) ? `[${value.join(", ")}]` : scalar(name, value));

function cell(name, value) {
  if (isObject(value) && typeof value.text === "string")
    return h("span", { class: "mono", title: value.line || null }, value.text);
  if (isObject(value) && Object.values(value).every(isPair))
    return Object.entries(value).map(([n, [a, b]]) =>
      h("div", {}, `${words(n)}: ${plain(n, a)} \u2192 ${plain(n, b)}`),
    );
  if (!Array.isArray(value) && !isObject(value)) return scalar(name, value);
  if (Array.isArray(value) && !value.some(isObject)) return value.map((v) => plain(name, v)).join(", ");
  return h("details", {}, h("summary", {}, Array.isArray(value) ? `${value.length}` : "more"), block(name, value));
}

function rows(list, right = []) {
  const names = [...new Set(list.flatMap((row) => Object.keys(row)))];
  const numeric = new Set(names.filter((n) => right.includes(n) || list.some((row) => typeof row[n] === "number")));
  return h(
    "table",
    {},
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        names.map((n) => h("th", { scope: "col", class: numeric.has(n) ? "numeric" : null }, words(n))),
      ),
    ),
    h(
      "tbody",
      {},
      list.map((row) =>
        h(
          "tr",
          {},
          names.map((n) => h("td", { class: numeric.has(n) ? "numeric" : null }, cell(n, row[n]))),
        ),
      ),
    ),
  );
}

/** {ops: [20, 18]}: before and after. */
function pairs(value) {
  const list = Object.entries(value).map(([name, [a, b]]) => ({
    "": words(name),
    before: scalar(name, a),
    after: scalar(name, b),
  }));
  return rows(list, ["before", "after"]);
}

function block(name, value) {
  if (isObject(value) && Object.values(value).length && Object.values(value).every(isPair)) return pairs(value);
  if (Array.isArray(value) && value.length && value.every(Array.isArray))
    return value.filter((v) => v.length).map((v) => block(name, v));
  if (Array.isArray(value) && value.length && value.every(isObject)) return rows(value);
  if (Array.isArray(value))
    return h(
      "ul",
      { class: "plain" },
      value.map((v) => h("li", {}, cell(name, v))),
    );
  if (isObject(value)) return facts(value);
  return h("p", {}, scalar(name, value));
}

function facts(value) {
  const entries = Object.entries(value);
  const short = entries.filter(([, v]) => !Array.isArray(v) && !isObject(v));
  const long = entries.filter(([, v]) => (Array.isArray(v) ? v.flat().length : isObject(v) && Object.keys(v).length));
  return [
    short.length
      ? h(
          "dl",
          { class: "facts" },
          short.map(([n, v]) => [h("dt", {}, words(n)), h("dd", {}, scalar(n, v))]),
        )
      : null,
    long.map(([n, v]) => h("section", {}, h("header", {}, h("h2", {}, words(n))), block(n, v))),
  ].flat(2);
}

export function documentTab(title, value) {
  const shown = isObject(value)
    ? Object.fromEntries(Object.entries(value).filter(([name]) => name !== "schema" && name !== "version"))
    : { [title]: value };
  return (panel) => {
    panel.append(h("div", { class: "document" }, facts(shown)));
  };
}

// The tabs of diff(): what was added, removed and changed, equal ones once; and both graphs side by side.
import { choice, h } from "./dom.js";
import { bytes, count, layers, nodeText, plural, seconds } from "./format.js";
import { Table } from "./table.js";

const ROW = 24;
const HIGHEST = 15; // rows of a section before it scrolls
const AROUND = 2; // equal rows shown on each side of a difference
const SIGNS = { added: "+", removed: "\u2212", changed: "~", same: "" };

/** {item, count}: items of one key are one. */
function groupsOf(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = JSON.stringify(keyOf(item));
    const g = groups.get(key);
    if (g) g.count++;
    else groups.set(key, { item, count: 1 });
  }
  return [...groups.values()];
}

const module = (g) => (g.count > 1 ? layers(g.item.module ?? "") : (g.item.module ?? ""));
const times = (g) => (g.count > 1 ? `\u00d7 ${count(g.count)}` : "");
const mono = (text, title = text) => h("span", { class: "mono", title }, text);
const numberless = (text) => layers(text).replace(/%\d+/g, "%");

function fieldsText(fields) {
  const said = (value) => (Array.isArray(value) ? `[${value.join(", ")}]` : value || "-");
  return Object.entries(fields)
    .flatMap(([name, [x, y]]) => {
      if (name !== "attrs") return `${name} ${said(x)} \u2192 ${said(y)}`;
      const keys = Object.keys({ ...x, ...y }).filter((k) => JSON.stringify(x[k]) !== JSON.stringify(y[k]));
      return keys.map((k) => `${k} ${said(x[k] ?? "")} \u2192 ${said(y[k] ?? "")}`);
    })
    .join("; ");
}

const ENDS = [
  { title: "", width: "60px", text: times, sort: (g) => g.count, numeric: true },
  { title: "module", width: "minmax(90px, 1fr)", text: module, sort: module },
  { title: "line", width: "minmax(90px, 1fr)", text: (g) => g.item.line ?? "", sort: (g) => g.item.line ?? "" },
];

function nodesTable(label, nodes) {
  const groups = groupsOf(nodes, (n) => [numberless(nodeText(n)), layers(n.module ?? ""), n.line]);
  const text = (g) => nodeText(g.item);
  const node = { title: "node", width: "minmax(260px, 3fr)", text: (g) => mono(text(g)), sort: text };
  return new Table({ label, rowHeight: ROW, columns: [node, ...ENDS], rows: groups });
}

function changesTable(label, changes) {
  const rows = changes.map(({ a, b, fields }) => ({ ...b, before: a, fields }));
  const shown = ({ line, operands, ...fields }) => numberless(fieldsText(fields)) + (operands ? "operands" : "");
  const groups = groupsOf(rows, (r) => [r.text.split(" ")[2], layers(r.module ?? ""), shown(r.fields)]);
  const text = (g) => nodeText(g.item);
  const columns = [
    { title: "after", width: "minmax(220px, 2fr)", text: (g) => mono(text(g)), sort: text },
    {
      title: "what differs",
      width: "minmax(220px, 2fr)",
      text: (g) => mono(fieldsText(g.item.fields)),
      sort: (g) => fieldsText(g.item.fields),
    },
    ...ENDS,
  ];
  return new Table({ label, rowHeight: ROW, columns, rows: groups });
}

function kernelsTable(label, kernels) {
  const bare = (names) => names.map((name) => name.replace(/_\d+$/, ""));
  const groups = groupsOf(kernels, (k) => [k.relation, bare(k.a), bare(k.b)]);
  const side = (title, key) => {
    const text = (g) => g.item[key].join(" + ");
    return { title, width: "minmax(200px, 2fr)", text: (g) => mono(text(g)), sort: text };
  };
  const columns = [
    { title: "what happened", width: "110px", text: (g) => g.item.relation, sort: (g) => g.item.relation },
    side("before", "a"),
    side("after", "b"),
    ENDS[0],
  ];
  return new Table({ label, rowHeight: ROW, columns, rows: groups });
}

/** A section that folds; a long one scrolls in itself. */
function section(title, items, makeTable) {
  if (!items.length) return null;
  const table = makeTable(title, items);
  const rows = table.rows.length;
  table.element.style.height = `${30 + ROW * Math.min(rows, HIGHEST)}px`;
  const once = rows < items.length ? `; equal ones of repeated layers once: ${plural(rows, "row")}` : "";
  return h(
    "section",
    {},
    h(
      "details",
      { open: rows <= HIGHEST },
      h("summary", {}, h("b", {}, title), h("span", { class: "hint" }, `${count(items.length)}${once}`)),
      table.element,
    ),
  );
}

function totalsTable(totals) {
  const units = { bytes, seconds };
  const said = (name, value) => (typeof value === "number" ? (units[name] ?? count)(value) : String(value));
  const rows = Object.entries(totals).map(([name, [a, b]]) => [
    name === "seconds" ? "time" : name,
    said(name, a),
    said(name, b),
    a > 0 && a !== b && Number.isFinite(b) ? `${(b / a).toFixed(2)}\u00d7` : "",
  ]);
  const cells = (tag, row) => row.map((text, i) => h(tag, { class: i ? "numeric" : null }, text));
  return h(
    "table",
    { class: "narrow" },
    h("thead", {}, h("tr", {}, cells("th", ["total", "before", "after", "change"]))),
    h("tbody", {}, rows.map((row) => h("tr", {}, cells("td", row)))),
  );
}

function cards({ added, removed, changed, moved, copied, kernels }) {
  const relations = groupsOf(kernels, (k) => k.relation).map((g) => [`kernels ${g.item.relation}`, g.count]);
  const rows = [
    ["nodes added", added.length],
    ["nodes removed", removed.length],
    ["nodes changed", changed.length],
    ...(moved ? [["on other lines only", moved]] : []),
    ...(copied.flat().length ? [["computed again", copied.flat().length]] : []),
    ...relations,
  ];
  return h(
    "dl",
    { class: "cards" },
    rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, count(value)))),
  );
}

export class DiffTab {
  constructor(panel, app) {
    const empty = { added: [], removed: [], changed: [], moved: 0, copied: [[], []], kernels: [], totals: {} };
    const d = { ...empty, ...app.model.report.difference };
    const different = d.added.length + d.removed.length + d.changed.length + d.kernels.length + d.copied.flat().length;
    panel.append(
      h(
        "div",
        { class: "document" },
        cards(d),
        different ? null : h("p", { class: "note" }, "No difference."),
        d.first
          ? h("section", {}, h("header", {}, h("h2", {}, "First difference")), h("p", { class: "first mono" }, d.first))
          : null,
        Object.keys(d.totals).length
          ? h("section", {}, h("header", {}, h("h2", {}, "Totals")), totalsTable(d.totals))
          : null,
        section("Removed", d.removed, nodesTable),
        section("Added", d.added, nodesTable),
        section("Changed", d.changed, changesTable),
        section("Computed again, before", d.copied[0], nodesTable),
        section("Computed again, after", d.copied[1], nodesTable),
        section("Kernels", d.kernels, kernelsTable),
      ),
    );
  }
}

// ---- side by side

/** Rows of both graphs, stretches of equal ones as one row that unfolds. */
function folded(rows, open) {
  const shown = [];
  for (let i = 0; i < rows.length; ) {
    let end = i;
    while (end < rows.length && rows[end].kind === "same") end++;
    const [first, last] = [i ? i + AROUND : 0, end < rows.length ? end - AROUND : end];
    if (last - first > 1 && !open.has(first)) {
      shown.push(...rows.slice(i, first), { kind: "equal", first, count: last - first }, ...rows.slice(last, end));
    } else shown.push(...rows.slice(i, end));
    if (end < rows.length) shown.push(rows[end]);
    i = end + 1;
  }
  return shown;
}

export class SidesTab {
  constructor(panel, app) {
    Object.assign(this, { model: app.model, open: new Set() });
    const side = (title, key) => ({ title, width: "minmax(0, 1fr)", text: (row) => this.#cell(row, key) });
    const sign = { title: "", width: "14px", text: (row) => SIGNS[row.kind] ?? "" };
    this.table = new Table({
      label: "Both graphs side by side",
      rowHeight: ROW,
      columns: [sign, side("before", "a"), side("after", "b")],
      rowClass: (row) => `side ${row.kind}`,
      onopen: (row) => this.#unfold(row),
      onselect: (row) => this.#unfold(row),
    });
    const equal = choice(
      "Equal rows",
      [
        ["folded", "Differences"],
        ["all", "Everything"],
      ],
      "folded",
      (how) => this.fill(how === "all"),
    );
    const hint = "\u2212 only before, + only after, ~ changed; a row of equal ones unfolds when it is selected";
    panel.append(h("div", { class: "bar" }, equal, h("span", { class: "hint" }, hint)), this.table.element);
    this.ready = this.#read();
  }

  async #read() {
    const rows = await this.model.sides();
    this.rows = rows.map(([kind, a, b]) => ({ kind, a, b }));
    this.fill(false);
  }

  #cell(row, key) {
    if (row.kind === "equal") return key === "a" ? `${plural(row.count, "equal row")} \u2026` : "";
    if (!row[key]) return "";
    const [text, kernel] = row[key];
    return [mono(nodeText({ text }), text), kernel ? h("small", { title: kernel }, `in ${kernel}`) : null];
  }

  #unfold(row) {
    if (row.kind !== "equal") return;
    this.open.add(row.first);
    this.fill(false);
  }

  fill(all) {
    this.table.rows = all ? this.rows : folded(this.rows, this.open);
  }
}

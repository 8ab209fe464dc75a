// The compare tab: what compare() prints, with its words and units, and the times as bars.
import { h, svg } from "./dom.js";
import { bytes, count, layers, number, seconds } from "./format.js";
import { Table } from "./table.js";

const WORDS =
  "time: of a call, the median over the turns; 95%: the interval that it lies in; of fused: by the fused time of the " +
  "same turn; bytes: read and written by a call; peak: memory that a call takes besides what was live; " +
  "max diff: the largest difference of any output from the fused run";
const FIGURES = [
  ["difference", "max diff"],
  ["relative", "relative"],
  ["ulps", "ulps"],
  ["error", "from f64"],
  ["error_relative", "relative"],
  ["error_ulps", "ulps"],
];

/** A value as text; "-" where it is not known, "" where the file does not speak of it. */
const known = (value, text) => (value === undefined ? "" : value === null ? "-" : text(value));

function ratio(row) {
  if (!(row.ratio > 0)) return "";
  const spread = row.mode === "fused" ? "" : ` \u00b1${Math.round(50 * (row.ratio_high - row.ratio_low))}%`;
  return `${row.ratio.toFixed(2)}\u00d7${spread}`;
}

const COLUMNS = [
  ["mode", (row) => row.mode],
  ["time", (row) => known(row.seconds, seconds)],
  ["95%", (row) => (row.low >= 0 && row.high >= 0 ? `${seconds(row.low)} to ${seconds(row.high)}` : "")],
  ["of fused", ratio],
  ["compile", (row) => known(row.compile_seconds, seconds)],
  ["kernels", (row) => known(row.kernels, count)],
  ["bytes", (row) => known(row.bytes, bytes)],
  ["peak", (row) => known(row.bytes_peak, bytes)],
  ["max diff", (row) => known(row.max_difference, number)],
  ["same bits", (row) => known(row.same_bits, (same) => (same ? "yes" : "no"))],
];

function waysTable(rows) {
  const columns = COLUMNS.filter(([, text]) => rows.some((row) => text(row)));
  const align = (i) => (i ? "numeric" : null);
  const line = (row) => h("tr", {}, columns.map(([, text], i) => h("td", { class: align(i) }, text(row))));
  return h(
    "table",
    {},
    h("thead", {}, h("tr", {}, columns.map(([title], i) => h("th", { scope: "col", class: align(i) }, title)))),
    h("tbody", {}, rows.map(line)),
  );
}

/** A bar for each way of running, as long as it took. */
function bars(rows) {
  const [width, high, left] = [860, 30, 118];
  const longest = Math.max(...rows.map((row) => Math.max(row.seconds, row.high ?? 0)));
  const at = (time) => left + (time / longest) * (width - 2 * left);
  const bar = (row, i) => {
    const [end, middle] = [at(row.seconds), i * high + high / 2];
    const stop = (time) => `M${at(time)} ${middle - 5}v10`;
    const interval = `M${at(row.low)} ${middle}H${at(row.high)}${stop(row.low)}${stop(row.high)}`;
    return [
      svg("text", { class: "tick", x: left - 8, y: middle + 5, "text-anchor": "end" }, row.mode),
      svg("rect", { class: "bar-of-time", x: left, y: middle - 10, width: end - left, height: high - 10, rx: 3 }),
      row.low >= 0 && row.high >= 0 ? svg("path", { class: "interval", d: interval }) : null,
      svg("text", { class: "tick", x: Math.max(end, at(row.high ?? 0)) + 8, y: middle + 5 }, seconds(row.seconds)),
    ];
  };
  const size = { viewBox: `0 0 ${width} ${rows.length * high}`, role: "img" };
  return svg("svg", { class: "bars", ...size, "aria-label": "Times; the table below has them" }, rows.map(bar));
}

function timesSection(rows) {
  if (!rows.every((row) => row.seconds >= 0)) return null;
  const legend = h(
    "ul",
    { class: "legend" },
    h("li", {}, h("i", { class: "dot bar-key" }), "median of a call"),
    rows.some((row) => row.low >= 0) ? h("li", {}, h("i", { class: "interval-key" }), "interval of 95%") : null,
  );
  return h("section", {}, h("header", {}, h("h2", {}, "Time of a call"), legend), bars(rows));
}

// ---- outputs

/** Those with NaN first, then by what is relative to the largest number. */
const size = (o) => [o.relative, o.error_relative].map((x) => (typeof x === "string" ? Infinity : (x ?? 0)));
const larger = (a, b) => {
  const [x, y] = [size(a), size(b)];
  return y[0] === x[0] ? (y[1] === x[1] ? 0 : y[1] - x[1]) : y[0] - x[0];
};

/** Outputs that differ, and how far those of the fused run are from f64; of equal layers the worst. */
function outputGroups(rows) {
  const groups = new Map();
  for (const row of rows) {
    for (const o of row.outputs ?? []) {
      if (row.mode !== "fused" && o.same_bits !== false) continue;
      const key = JSON.stringify([row.mode, layers(o.name), o.dtype]);
      groups.set(key, [...(groups.get(key) ?? []), { ...o, mode: row.mode }]);
    }
  }
  const shown = [...groups.values()];
  if (!shown.flat().some((o) => o.same_bits === false || known(o.error, String).length > 1)) return [];
  return shown
    .map((g) => ({ worst: [...g].sort(larger)[0], count: g.length }))
    .sort((a, b) => larger(a.worst, b.worst));
}

function outputsSection(rows) {
  const groups = outputGroups(rows);
  if (!groups.length) return null;
  const name = ({ worst, count: n }) => (n > 1 ? `${layers(worst.name)} \u00d7 ${n}` : worst.name);
  const table = new Table({
    label: "Outputs",
    columns: [
      { title: "output", width: "minmax(160px, 2fr)", text: name, sort: name },
      { title: "mode", width: "90px", text: (g) => g.worst.mode, sort: (g) => g.worst.mode },
      { title: "dtype", width: "80px", text: (g) => g.worst.dtype, sort: (g) => g.worst.dtype },
      ...FIGURES.map(([field, title]) => ({
        title,
        width: "84px",
        numeric: true,
        text: (g) => known(g.worst[field], number),
        sort: (g) => (typeof g.worst[field] === "string" ? Infinity : (g.worst[field] ?? -1)),
      })),
    ],
    rows: groups,
  });
  table.element.style.height = `${Math.min(380, 30 + 26 * groups.length)}px`;
  const note =
    "max diff, relative (to the largest number) and ulps: from the fused run; from f64 and what follows: from the " +
    "function in f64 on the CPU";
  return h("section", {}, h("header", {}, h("h2", {}, "Outputs")), table.element, h("p", { class: "note" }, note));
}

// ---- in words

function sentences({ rows, notes }) {
  const firsts = rows
    .filter((row) => row.first_difference)
    .map(({ mode, first_difference: f }) => {
      const kernel = f.kernel ? `, by kernel ${f.kernel} (${f.kernel_ops.join(", ")})` : "";
      return [
        `${mode} differs from fused first at `,
        h("span", { class: "mono" }, f.node),
        `${kernel}: ${number(f.difference)}, and its operands agree`,
      ];
    });
  const lines = [...firsts, ...(notes ?? [])];
  if (!lines.length) return null;
  const list = lines.map((line) => h("li", {}, line));
  return h("section", {}, h("header", {}, h("h2", {}, "Notes")), h("ul", { class: "plain" }, list));
}

export class CompareTab {
  constructor(panel, app) {
    const { comparison } = app.model.report;
    panel.append(
      h(
        "div",
        { class: "document" },
        timesSection(comparison.rows),
        h(
          "section",
          {},
          h("header", {}, h("h2", {}, "Ways of running")),
          waysTable(comparison.rows),
          h("p", { class: "note" }, WORDS),
        ),
        outputsSection(comparison.rows),
        sentences(comparison),
      ),
    );
  }
}

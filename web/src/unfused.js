// Edges between kernels that stayed two, by what fusing them would save.
import { choice, h } from "./dom.js";
import { bytes, plural } from "./format.js";
import { Table } from "./table.js";

/** First those that one can do something about, then by what fusing would save. */
export function byRemedy(a, b) {
  const acts = (e) => Number(e.acts && e.saves > 0);
  return acts(b) - acts(a) || b.saves - a.saves;
}

export class UnfusedTab {
  constructor(panel, app) {
    Object.assign(this, { app, edges: app.model.report.edges });
    const modules = (g) =>
      [...new Set((g.edges.length > 1 ? g.edges[0].layers : g.edges[0].modules).filter(Boolean))].join(" \u2192 ");
    const rule = (g) => g.edges[0].refusal.replaceAll("_", " ");
    this.table = new Table({
      label: "Unfused edges",
      className: "wrapped",
      rowHeight: 60,
      columns: [
        { title: "would save", width: "78px", numeric: true, text: (g) => bytes(g.saves), sort: (g) => g.saves },
        {
          title: "value",
          about: "its size",
          width: "66px",
          numeric: true,
          text: (g) => bytes(g.bytes),
          sort: (g) => g.bytes,
        },
        {
          title: "edge",
          width: "minmax(110px, 1.5fr)",
          text: (g) => `${g.edges[0].ends.join(" \u2192 ")}${g.edges.length > 1 ? ` \u00d7 ${g.edges.length}` : ""}`,
          sort: (g) => g.edges[0].ends.join(),
        },
        { title: "module", width: "minmax(70px, 1fr)", text: modules, sort: modules },
        { title: "line", width: "minmax(90px, 1.2fr)", text: (g) => g.edges[0].line, sort: (g) => g.edges[0].line },
        {
          title: "reason",
          width: "minmax(120px, 1.8fr)",
          text: (g) => h("span", { title: `${rule(g)}: ${g.edges[0].reason}` }, g.edges[0].reason),
          sort: rule,
        },
        {
          title: "what can be done",
          width: "minmax(140px, 2.2fr)",
          text: (g) => h("span", { title: g.edges[0].remedy }, g.edges[0].remedy),
          sort: (g) => g.edges[0].remedy,
        },
      ],
      onselect: (g) =>
        app.selection.select({ stage: app.model.main, node: g.edges[0].producer, edge: g.edges[0] }, this),
      onopen: () => app.open("graph"),
    });
    const fold = choice(
      "Equal edges",
      [
        ["folded", "Equal edges once"],
        ["all", "Each edge"],
      ],
      "folded",
      (how) => this.fill(how === "folded"),
    );
    const whole = this.edges.reduce((sum, e) => sum + e.saves, 0);
    panel.append(
      h(
        "div",
        { class: "bar" },
        h("h2", {}, plural(this.edges.length, "unfused edge")),
        fold,
        h("span", { class: "hint" }, `fusing all would save ${bytes(whole)}; Enter shows the producer in the graph`),
      ),
      this.table.element,
    );
    this.fill(true);
  }

  fill(folded) {
    const groups = new Map();
    this.edges.forEach((e, i) => {
      const key = folded ? JSON.stringify([e.ends, e.layers, e.refusal, e.line]) : i;
      const g = groups.get(key) ?? { edges: [], saves: 0, bytes: 0, acts: e.acts };
      g.edges.push(e);
      g.saves += e.saves;
      g.bytes += e.bytes;
      groups.set(key, g);
    });
    this.table.rows = [...groups.values()].sort(byRemedy);
  }
}

// Edges between kernels that stayed two, by what fusing them would save.
import { choice, h } from "./dom.js";
import { bytes, plural } from "./format.js";
import { Table } from "./table.js";

export class UnfusedTab {
  constructor(panel, app) {
    Object.assign(this, { app, edges: app.model.report.edges });
    const modules = (g) =>
      [...new Set((g.edges.length > 1 ? g.edges[0].layers : g.edges[0].modules).filter(Boolean))].join(" \u2192 ");
    const rule = (g) => g.edges[0].refusal.replaceAll("_", " ");
    this.table = new Table({
      label: "Unfused edges",
      columns: [
        { title: "would save", width: "92px", numeric: true, text: (g) => bytes(g.saves), sort: (g) => g.saves },
        { title: "bytes", width: "84px", numeric: true, text: (g) => bytes(g.bytes), sort: (g) => g.bytes },
        {
          title: "edge",
          width: "minmax(180px, 1.8fr)",
          text: (g) => `${g.edges[0].ends.join(" \u2192 ")}${g.edges.length > 1 ? ` \u00d7 ${g.edges.length}` : ""}`,
          sort: (g) => g.edges[0].ends.join(),
        },
        { title: "module", width: "minmax(120px, 1.4fr)", text: modules, sort: modules },
        { title: "line", width: "minmax(90px, 1fr)", text: (g) => g.edges[0].line, sort: (g) => g.edges[0].line },
        { title: "rule", width: "90px", text: rule, sort: rule },
        {
          title: "reason",
          width: "minmax(160px, 3fr)",
          text: (g) => h("span", { title: g.edges[0].reason }, g.edges[0].reason),
          sort: (g) => g.edges[0].reason,
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
      const g = groups.get(key) ?? { edges: [], saves: 0, bytes: 0 };
      g.edges.push(e);
      g.saves += e.saves;
      g.bytes += e.bytes;
      groups.set(key, g);
    });
    this.table.rows = [...groups.values()].sort((a, b) => b.saves - a.saves);
  }
}

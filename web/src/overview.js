// The first tab: totals, where time and bytes go, the dearest kernels, what is not fused, why it compiled.
import { byTime, ROOFS } from "./data.js";
import { choice, colours, h, legend } from "./dom.js";
import { bytes, count, percent, rate, seconds } from "./format.js";
import { hierarchy } from "./hierarchy.js";
import { Table } from "./table.js";
import { Treemap } from "./treemap.js";
import { byRemedy } from "./unfused.js";

const EDGES = 8;
export const ROOF = "the time that this machine needs at least for the bytes and the arithmetic, by the time it took";

/** Half of what lies between the quartiles, of the time. */
function spread({ low, high, seconds: middle }) {
  if (!(low < high)) return "";
  return high - low < 20 * middle ? percent((high - low) / 2, middle) : ">999%";
}

export class OverviewTab {
  constructor(panel, app) {
    Object.assign(this, { app, model: app.model });
    const { run, kernels } = app.model;
    panel.append(this.#totals());
    if (!kernels.length) {
      panel.append(h("p", { class: "note" }, app.model.nothing || "This graph has no plan: only its ops are shown."));
      return;
    }
    for (const text of [run?.part, run?.timing, run?.cold])
      if (text) panel.append(h("p", { class: "note" }, `${text[0].toUpperCase()}${text.slice(1)}.`));
    const key = run ? "seconds" : "bytes";
    const { root } = (app.trees ??= hierarchy(app.model, app.model.graph));
    this.treemap = new Treemap(root, key, (item) => app.selection.select({ kernel: item.kernel }, this));
    const keys = choice(
      "Area",
      [
        ["seconds", "Time"],
        ["bytes", "Bytes"],
      ],
      key,
      (k) => {
        this.treemap.key = k;
        this.treemap.draw();
      },
    );
    this.kernels = this.#kernelTable();
    const shown = h("div", { class: "key" }, legend(kernels));
    const colouring = app.colouring((byRoof) => {
      this.treemap.byRoof = byRoof;
      this.treemap.draw();
      shown.replaceChildren(byRoof ? colours("Colours of shares of the roof", ROOFS) : legend(kernels));
    });
    panel.append(
      h(
        "section",
        {},
        h("header", {}, h("h2", {}, run ? "Where time goes" : "Where bytes go"), shown, colouring, run ? keys : null),
        this.treemap.element,
      ),
      h(
        "section",
        {},
        h("header", {}, h("h2", {}, run ? "Kernels by time" : "Kernels by bytes")),
        this.kernels.element,
      ),
      ...[this.#why(), this.#edges()].filter(Boolean),
    );
    app.selection.subscribe(() => this.#follow());
  }

  #totals() {
    const { run, kernels, graph } = this.model;
    const flops = kernels.reduce((sum, k) => sum + k.flops, 0);
    const cards = [
      ["ops", count(graph.nodes.filter((_, i) => !graph.isInput(i)).length), `in the ${graph.name} graph`],
      ["kernels", count(kernels.length), `${count(new Set(kernels.map((k) => k.launch)).size)} launches`],
      ["bytes moved", bytes(this.model.bytes), run ? `${bytes(run.bytes_saved)} saved by fusion` : ""],
      ["arithmetic", flops ? rate(flops, "FLOP").replace("/s", "") : "0", ""],
    ];
    if (run) {
      const compiled = run.kernels.reduce((sum, k) => sum + k.compile_seconds, 0);
      const { seconds: spent } = this.model;
      cards.unshift(["running", seconds(spent), spent ? rate(flops / spent, "FLOP") : ""]);
      cards.push(["compiling", seconds(compiled), `${run.kernels.filter((k) => k.fresh).length} launches new`]);
    }
    if (!kernels.length) cards.splice(0, cards.length, cards.find(([name]) => name === "ops"));
    return h(
      "dl",
      { class: "cards" },
      cards.map(([name, value, note]) =>
        h("div", {}, h("dt", {}, name), h("dd", {}, value), h("dd", { class: "sub" }, note)),
      ),
    );
  }

  /** Kernels of one code, shape and place in a layer are one row, as in what explain() prints. */
  #groups() {
    const groups = new Map();
    for (const k of this.model.kernels) {
      const key = JSON.stringify([k.code ?? k.name, k.kind, k.shape, k.layer]);
      const g = groups.get(key) ?? { kernels: [], seconds: 0, bytes: 0, flops: 0, roof: 0, low: 0, high: 0 };
      g.kernels.push(k);
      for (const sum of ["seconds", "bytes", "flops"]) g[sum] += k[sum];
      g.roof += k.roof ?? NaN;
      for (const end of ["low", "high"])
        g[end] += k.timed?.seconds ? ((k.timed[end] ?? k.timed.seconds) * k.seconds) / k.timed.seconds : 0;
      groups.set(key, g);
    }
    if (this.model.run) return byTime(groups.values());
    return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
  }

  #kernelTable() {
    const { model, app } = this;
    const first = (g) => g.kernels[0];
    const name = (g) => [
      h("i", { class: `dot kind-${first(g).kind}` }),
      g.kernels.length > 1 ? `${g.kernels.length} \u00d7 ${first(g).name.replace(/_\d+$/, "")}` : first(g).name,
    ];
    const timed = [
      { title: "time", width: "58px", numeric: true, text: (g) => seconds(g.seconds), sort: (g) => g.seconds },
      {
        title: "\u00b1",
        about: "half of what lies between the quartiles of the runs",
        width: "46px",
        numeric: true,
        text: (g) => spread(g),
        sort: (g) => (g.high - g.low) / g.seconds || 0,
      },
      {
        title: "share",
        width: "54px",
        numeric: true,
        text: (g) => percent(g.seconds, model.seconds),
        sort: (g) => g.seconds,
      },
      {
        title: "of roof",
        about: ROOF,
        width: "56px",
        numeric: true,
        text: (g) => (g.roof ? percent(g.roof, g.seconds) : ""),
        sort: (g) => g.roof / g.seconds || 0,
      },
    ];
    const table = new Table({
      label: "Kernels",
      columns: [
        {
          title: "kernel",
          width: "minmax(170px, 2.6fr)",
          text: (g) => h("span", { class: "name" }, name(g)),
          sort: (g) => first(g).name,
        },
        ...(model.run ? timed : []),
        { title: "bytes", width: "62px", numeric: true, text: (g) => bytes(g.bytes), sort: (g) => g.bytes },
        { title: "shape", width: "minmax(80px, 0.9fr)", text: (g) => first(g).shape, sort: (g) => first(g).shape },
        {
          title: "module",
          width: "minmax(56px, 0.7fr)",
          text: (g) => (g.kernels.length > 1 ? first(g).layer : first(g).module),
          sort: (g) => first(g).layer,
        },
        {
          title: "lines",
          width: "minmax(90px, 1fr)",
          text: (g) => first(g).lines.join(" "),
          sort: (g) => first(g).lines.join(" "),
        },
      ],
      rows: this.#groups(),
      onselect: (g) => this.#choose(g),
      onopen: () => app.open("code"),
    });
    return table;
  }

  #choose(group) {
    const dearest = group.kernels.reduce((a, b) => (b.seconds > a.seconds ? b : a));
    this.app.selection.select({ kernel: dearest.index }, this);
  }

  #follow() {
    const { kernel } = this.app.selection;
    this.treemap.select(kernel);
    this.kernels.show(
      this.kernels.rows.findIndex((g) => g.kernels.some((k) => k.index === kernel)),
      kernel !== null,
    );
  }

  #why() {
    const { run } = this.model;
    if (!run) return null;
    const fresh = run.kernels.filter((k) => k.fresh).sort((a, b) => b.compile_seconds - a.compile_seconds);
    return h(
      "section",
      {},
      h("header", {}, h("h2", {}, "Its plan, and why")),
      h(
        "ul",
        { class: "plain" },
        run.why.flatMap((line, i) => [h("li", {}, line), h("li", {}, run.unwatched[i])]),
      ),
      fresh.length
        ? h(
            "p",
            { class: "note" },
            `Longest to compile: ${fresh
              .slice(0, 4)
              .map((k) => `${k.name} ${seconds(k.compile_seconds)}`)
              .join(", ")}`,
          )
        : h("p", { class: "note" }, "All code was there."),
    );
  }

  #edges() {
    const { report, run } = this.model;
    const rows = [...report.edges].sort(byRemedy).slice(0, EDGES);
    if (run && !run.grouping)
      return h(
        "section",
        {},
        h("h2", {}, "Not fused"),
        h("p", { class: "note" }, "Grouping is off: each op is a kernel."),
      );
    if (!rows.length) return null;
    const open = (e) => this.app.selection.select({ stage: this.model.main, node: e.producer, edge: e }, this);
    return h(
      "section",
      {},
      h(
        "header",
        {},
        h("h2", {}, "Not fused: first what can be changed, then what would save most"),
        h(
          "button",
          { type: "button", class: "link", onclick: () => this.app.open("unfused") },
          `all ${report.edges.length}`,
        ),
      ),
      h(
        "table",
        {},
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["edge", "would save", "module", "line", "reason", "what can be done"].map((t) => h("th", { scope: "col" }, t)),
          ),
        ),
        h(
          "tbody",
          {},
          rows.map((e) =>
            h(
              "tr",
              {},
              h(
                "td",
                { class: "keep" },
                h("button", { type: "button", class: "link", onclick: () => open(e) }, e.ends.join(" \u2192 ")),
              ),
              h("td", { class: "numeric" }, bytes(e.saves)),
              h("td", { class: "keep" }, e.modules[0]),
              h("td", { class: "keep" }, e.line),
              h("td", {}, e.reason),
              h("td", {}, e.remedy),
            ),
          ),
        ),
      ),
    );
  }
}

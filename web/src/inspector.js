// The panel at the side: what is selected, in words, and ways from there.
import { h } from "./dom.js";
import { bytes, count, percent, plural, rate, seconds, type } from "./format.js";

const MANY = 40;
const KEYS = [
  ["/", "search"],
  ["Escape", "select nothing; zoom out"],
  ["\u2191 \u2193", "rows of a list; boxes of the graph"],
  ["\u2190 \u2192", "fold, unfold; tabs"],
  ["Enter", "go to the code; fold, unfold"],
  ["+ \u2212 0", "zoom the graph; fit it"],
];
export const CODE = [
  ["kernels", "Loops"],
  ["schedule", "Schedule"],
  ["c", "C"],
  ["llvm", "LLVM IR"],
  ["asm", "Assembly"],
];

export class Inspector {
  constructor(app) {
    Object.assign(this, { app, model: app.model });
    this.element = h("aside", { class: "inspector", "aria-label": "What is selected" });
    app.selection.subscribe(() => this.draw());
    this.draw();
  }

  draw() {
    const { selection } = this.app;
    const parts = [];
    if (selection.edge) parts.push(this.#edge(selection.edge));
    if (selection.group) parts.push(this.#group(selection.group));
    if (selection.source) parts.push(h("h2", {}, "Line"), h("p", { class: "mono" }, selection.source));
    if (selection.node !== null) parts.push(this.#node(selection.stage, selection.node));
    if (selection.kernel !== null)
      parts.push(this.#kernel(this.model.kernels[selection.kernel], selection.node === null));
    if (!parts.length)
      parts.push(
        h("p", { class: "note" }, "Select a kernel, an op or a line: it is selected in every tab."),
        this.#facts(KEYS),
      );
    this.element.replaceChildren(...parts.flat(Infinity).filter(Boolean));
  }

  #facts(rows) {
    return h(
      "dl",
      { class: "facts" },
      rows
        .filter(([, value]) => value !== "" && value !== undefined && value !== null)
        .map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    );
  }

  #jump(text, action, label) {
    return h("button", { type: "button", onclick: action, "aria-label": label }, text);
  }

  #kernel(k, main) {
    const { app, model } = this;
    const graph = model.graph;
    const t = k.timed;
    const shared = k.code === null ? 0 : model.kernels.filter((other) => other.code === k.code).length;
    const intensity = k.flops > 8 * k.bytes ? rate(k.flops / k.seconds, "FLOP") : rate(k.bytes / k.seconds, "B");
    return [
      h("h2", {}, h("i", { class: `dot kind-${k.kind}` }), h("span", { class: "mono" }, k.name)),
      h(
        "div",
        { class: "jumps" },
        k.code === null ? null : CODE.map(([stage, text]) => this.#jump(text, () => app.open("code", stage))),
        this.#jump("Source", () => app.open("code", "source")),
        this.#jump("In the graph", () => app.open("graph")),
      ),
      this.#facts([
        ["kind", `${k.kind}, ${plural(k.nodes.length, "op")}`],
        ["shape", k.shape],
        ["module", k.module],
        [
          "time",
          t
            ? `${seconds(k.seconds)} (${percent(k.seconds, model.seconds)})${t.rows > 1 ? `, in a launch of ${t.rows}` : ""}`
            : "",
        ],
        ["rate", t && k.seconds ? intensity : ""],
        ["of roof", t?.roof_seconds ? percent(t.roof_seconds, t.seconds) : ""],
        ["reads", bytes(k.bytes_read)],
        ["writes", bytes(k.bytes_written)],
        ["arithmetic", k.flops ? `${count(k.flops)} operations` : ""],
        ["code", t ? (t.fresh ? `compiled in ${seconds(t.compile_seconds)}` : "was there") : ""],
        ["shared by", shared > 1 ? plural(shared, "kernel") : ""],
        ["launch", t ? `${k.launch + 1} of ${model.run.kernels.length}` : k.launch + 1],
      ]),
      k.lines.length ? [h("h3", {}, "Lines"), this.#lines(k)] : null,
      main
        ? [
            this.#nodes("Reads", graph, k.reads),
            this.#nodes("Writes", graph, k.writes),
            this.#nodes("Ops", graph, k.nodes),
          ]
        : null,
    ];
  }

  #lines(kernel) {
    const graph = this.model.graph;
    const found = [...new Set(kernel.nodes.map((i) => graph.nodes[i].source).filter(Boolean))];
    const select = (source) => () => {
      this.app.selection.select({ source });
      this.app.open("code", "source");
    };
    const short = (source) => source.split("/").at(-1);
    return h(
      "ul",
      { class: "items" },
      found.map((source) =>
        h(
          "li",
          {},
          h("button", { type: "button", class: "link mono", title: source, onclick: select(source) }, short(source)),
        ),
      ),
    );
  }

  #nodes(title, stage, numbers) {
    if (!numbers.length) return null;
    const row = (i) => {
      const node = stage.nodes[i];
      const select = () => this.app.selection.select({ stage: stage.name, node: i });
      return h(
        "li",
        {},
        h("button", { type: "button", class: "link mono", onclick: select }, stage.label(i)),
        h("span", { class: "type" }, type(node)),
      );
    };
    const rest = numbers.length - MANY;
    return [
      h("h3", {}, `${title} (${numbers.length})`),
      h(
        "ul",
        { class: "items" },
        numbers.slice(0, MANY).map(row),
        rest > 0 ? h("li", { class: "note" }, `and ${rest} more`) : null,
      ),
    ];
  }

  #node(name, i) {
    const stage = this.model.stages[name];
    const node = stage.nodes[i];
    const forward = node.forward;
    return [
      h("h2", {}, h("span", { class: "mono" }, stage.label(i)), h("small", {}, name)),
      this.#facts([
        ["type", type(node)],
        ["bytes", bytes(node.bytes ?? 0)],
        ["module", node.module],
        ["line", node.source || node.line],
        ["called in", node.library],
        ["recorded as", node.recorded !== node.op ? node.recorded : ""],
        [
          "attributes",
          Object.entries(node.attrs)
            .map(([key, value]) => `${key}=${JSON.stringify(value)}`)
            .join(", "),
        ],
      ]),
      forward === undefined ? null : this.#nodes("Gradient of", stage, [forward]),
      this.#nodes("Reads", stage, [...new Set(node.operands)]),
      this.#nodes("Read by", stage, stage.users[i]),
    ];
  }

  #edge(edge) {
    const stage = this.model.graph;
    return [
      h("h2", {}, edge.ends.join(" \u2192 ")),
      this.#facts([
        ["not fused", `${edge.refusal}: ${edge.reason}`],
        ["value", bytes(edge.bytes)],
        ["can be done", edge.remedy],
        ["would save", bytes(edge.saves)],
      ]),
      this.#nodes("Consumer", stage, [edge.consumer]),
    ];
  }

  #group(group) {
    const { model, app } = this;
    const kernels = group.kernels.map((k) => model.kernels[k]);
    const sum = (key) => kernels.reduce((total, k) => total + k[key], 0);
    const key = model.run ? "seconds" : "bytes";
    const dearest = [...kernels].sort((a, b) => b[key] - a[key]).slice(0, MANY);
    return [
      h("h2", {}, group.name),
      this.#facts([
        ["ops", count(group.ops)],
        ["kernels", kernels.length ? count(kernels.length) : ""],
        ["time", model.run ? `${seconds(sum("seconds"))} (${percent(sum("seconds"), model.seconds)})` : ""],
        ["bytes", kernels.length ? bytes(sum("bytes")) : ""],
      ]),
      h(
        "ul",
        { class: "items" },
        dearest.map((k) =>
          h(
            "li",
            {},
            h(
              "button",
              { type: "button", class: "link mono", onclick: () => app.selection.select({ kernel: k.index }) },
              k.name,
            ),
            h("span", { class: "type" }, model.run ? seconds(k.seconds) : bytes(k.bytes)),
          ),
        ),
      ),
    ];
  }
}

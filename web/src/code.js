// The code tab: the way from source to assembly, side by side. What is selected is marked in every pane.
import { h } from "./dom.js";
import { plural } from "./format.js";
import { CODE } from "./inspector.js";
import { Table } from "./table.js";

const GRAPHS = { recorded: "Recorded", simplified: "Simplified", fused: "Fused" };
const LETTER = 7.3; // pixels a letter of the panes is wide, about
const ROW = 19;

const LOOPS =
  /(?<comment>#.*)|(?<name>[%@][\w.]+)|(?<word>\b(?:kernel|schedule|over|parallel|each|vector|unroll|serial|lanes|column|chain|by|in|own|out|local|load|store|carry|fold|halves|at)\b)|(?<type>\b(?:[fiu]\d+|bf16|bool)\b)|(?<number>\b\d+\b)/g;

/** Words of a line, coloured: comments, numbers, names, keywords. */
function paint(text, language) {
  const rules = {
    graph: /(?<comment>#.*)|(?<name>[%@][\w.]+)|(?<number>\b-?\d[\d.e+-]*\b)|(?<type>\b[a-z]+\d*\[[^\]]*\])/g,
    kernels: LOOPS,
    schedule: LOOPS,
    c: /(?<comment>\/\*.*?\*\/|\/\/.*|^#.*)|(?<word>\b(?:const|for|if|else|return|void|float|double|int64_t|static|while)\b)|(?<number>\b\d[\w.]*\b)/g,
    llvm: /(?<comment>;.*)|(?<name>[%@][\w."]+)|(?<word>\b(?:define|declare|ret|br|label|load|store|phi|call|getelementptr|fadd|fmul|fsub|fdiv|add|mul|icmp|fcmp|select)\b)|(?<type>\b(?:ptr|i\d+|float|double|half|bfloat)\b)|(?<number>\b\d+\b)/g,
    asm: /(?<comment>#.*)|(?<word>^\s+[a-z]\w*)|(?<name>%?\b[xyz]mm\d+|%[a-z]\w+)|(?<number>\$?-?\b(?:0x)?\d+\b)|(?<type>^[.\w]+:)/g,
    source:
      /(?<comment>#.*)|(?<type>"[^"]*"|'[^']*')|(?<word>\b(?:def|class|return|for|in|if|else|elif|with|import|from|lambda|not|and|or|is|None|True|False|yield|while)\b)|(?<number>\b\d[\w.]*\b)/g,
  };
  const parts = [];
  let end = 0;
  for (const match of text.matchAll(rules[language])) {
    parts.push(text.slice(end, match.index));
    const [kind] = Object.entries(match.groups).find(([, found]) => found !== undefined);
    parts.push(h("span", { class: `c-${kind}` }, match[0]));
    end = match.index + match[0].length;
  }
  parts.push(text.slice(end));
  return h("code", {}, parts);
}

class Pane {
  constructor(tab, name, title, language) {
    Object.assign(this, { tab, name, language });
    this.note = h("span", { class: "hint" });
    this.table = new Table({
      label: title,
      head: false,
      rowHeight: ROW,
      className: "code",
      columns: [
        { width: "auto", text: (row) => h("span", { class: "number" }, row.number ?? "") },
        { width: "1fr", text: (row) => this.#line(row) },
      ],
      onselect: (row) => row.select && tab.app.selection.select(row.select, this),
    });
    this.word = h("p", { class: "note", hidden: true });
    this.element = h(
      "section",
      { class: "pane", "data-pane": name },
      h("header", {}, h("h2", {}, title), this.note),
      this.word,
      this.table.element,
    );
  }

  #line({ heading, note, text }) {
    if (heading) return h("b", {}, heading);
    return note ? h("span", { class: "hint" }, note) : paint(text, this.language);
  }

  /** A sentence instead of lines. */
  say(text) {
    this.fill([]);
    this.word.textContent = text;
    this.word.hidden = false;
    this.table.element.hidden = true;
  }

  fill(rows, note = "") {
    this.word.hidden = true;
    this.table.element.hidden = false;
    const longest = rows.reduce((most, { text, heading, note }) => Math.max(most, (text ?? heading ?? note).length), 0);
    this.table.space.style.minWidth = `${longest * LETTER + 64}px`;
    this.table.rows = rows;
    this.note.textContent = note;
  }
}

class GraphPane extends Pane {
  constructor(tab, name) {
    super(tab, name, GRAPHS[name], "graph");
  }

  async update(from) {
    const { selection, model } = this.tab.app;
    if (!this.stage) {
      this.stage = await model.stage(this.name);
      this.fill(
        this.stage.nodes.map((node, i) => ({ text: node.text, number: i, select: { stage: this.name, node: i } })),
      );
    }
    const marked = selection.in(this.stage);
    this.note.textContent = marked.size ? `${marked.size} selected` : plural(this.stage.nodes.length, "node");
    this.table.mark(marked, from !== this);
  }
}

class SourcePane extends Pane {
  constructor(tab) {
    super(tab, "source", "Source", "source");
  }

  async update(from) {
    const { model, selection } = this.tab.app;
    if (!this.lines) {
      this.lines = [];
      const used = new Set(Object.values(model.stages).flatMap((stage) => [...stage.bySource.keys()]));
      for (const [path, runs] of Object.entries(model.report.sources)) this.#addFile(path, runs, used);
      if (this.lines.length) this.fill(this.lines, plural(Object.keys(model.report.sources).length, "file"));
      else this.say("No op has a source line.");
    }
    const sources = selection.sources();
    this.table.mark(
      this.lines.flatMap((row, i) => (sources.has(row.source) ? [i] : [])),
      from !== this,
    );
  }

  #addFile(path, runs, used) {
    this.lines.push({ heading: path });
    runs.forEach(([first, lines], i) => {
      if (i > 0) this.lines.push({ text: "\u22ef" });
      lines.forEach((text, k) => {
        const source = `${path}:${first + k}`;
        this.lines.push({ text, number: first + k, source, select: used.has(source) ? { source } : null });
      });
    });
    if (!runs.length) this.lines.push({ note: "The file could not be read." });
  }
}

class CodePane extends Pane {
  constructor(tab, stage, title) {
    super(tab, stage, title, stage);
    this.shown = null;
  }

  async update() {
    const { model, selection } = this.tab.app;
    const codes = await model.code();
    const kernel = selection.kernel === null ? null : model.kernels[selection.kernel];
    const code = kernel?.code ?? null;
    const shown = kernel ? `${kernel.index} ${code}` : "";
    if (shown === this.shown) return;
    this.shown = shown;
    if (!kernel) return this.say("Select a kernel, or an op that is computed in one: its code is shown here.");
    if (code === null) return this.say(`${kernel.name} calls another library: there is no code of it here.`);
    const sharing = model.kernels.filter((k) => k.code === code);
    const lines = codes[code][this.name].replace(/\n$/, "").split("\n");
    const note = `${kernel.name}${sharing.length > 1 ? `, code shared by ${sharing.length}: ${sharing[0].name}` : ""}`;
    this.fill(
      lines.map((text, i) => ({ text, number: i + 1 })),
      `${note}; ${plural(lines.length, "line")}`,
    );
    this.table.element.scrollTop = this.name === "asm" ? ROW * firstInstruction(lines) : 0;
  }
}

/** Where the code begins: behind directives and constants, at the label before the first instruction. */
function firstInstruction(lines) {
  const first = lines.findIndex((line) => /^\s+[a-z]\w*/.test(line));
  const label = first < 0 ? -1 : lines.slice(0, first).findLastIndex((line) => /^[\w$@"]+:/.test(line));
  return Math.max(0, label < 0 ? first : label);
}

export class CodeTab {
  constructor(panel, app) {
    this.app = app;
    const { report, kernels } = app.model;
    this.panes = new Map([["source", new SourcePane(this)]]);
    for (const stage of report.stages) this.panes.set(stage, new GraphPane(this, stage));
    if (kernels.some((k) => k.code !== null))
      for (const [stage, title] of CODE) this.panes.set(stage, new CodePane(this, stage, title));
    this.shown = new Set(["source", app.model.main, "kernels", "asm"].filter((name) => this.panes.has(name)));
    this.row = h("div", { class: "panes" });
    this.bar = h("div", { class: "bar choice", role: "group", "aria-label": "Panes shown" });
    for (const [name, pane] of this.panes) {
      const title = pane.element.querySelector("h2").textContent;
      this.bar.append(h("button", { type: "button", value: name, onclick: () => this.#toggle(name) }, title));
    }
    panel.append(this.bar, this.row);
    const { selection } = app;
    if (selection.kernel === null && selection.node === null && selection.source === null) this.#chooseDearest();
    app.selection.subscribe((from) => this.update(from));
    this.#arrange();
  }

  /** Of those that have code here. */
  #chooseDearest() {
    const { model, selection } = this.app;
    const key = model.run ? "seconds" : "bytes";
    const [dearest] = model.kernels.filter((k) => k.code !== null).sort((a, b) => b[key] - a[key]);
    if (dearest) selection.select({ kernel: dearest.index }, this);
  }

  #toggle(name) {
    if (!this.shown.delete(name)) this.shown.add(name);
    this.#arrange();
  }

  /** Shows a pane and brings it into sight. */
  reveal(name) {
    if (!this.panes.has(name)) return;
    this.shown.add(name);
    this.#arrange();
    this.panes.get(name).element.scrollIntoView({ inline: "nearest", block: "nearest" });
    this.panes.get(name).table.element.focus();
  }

  #arrange() {
    this.row.replaceChildren(
      ...[...this.panes].filter(([name]) => this.shown.has(name)).map(([, pane]) => pane.element),
    );
    for (const button of this.bar.children) button.setAttribute("aria-pressed", String(this.shown.has(button.value)));
    this.update();
  }

  async update(from = null) {
    for (const name of this.shown) await this.panes.get(name).update(from);
  }

  show() {
    this.update();
  }
}

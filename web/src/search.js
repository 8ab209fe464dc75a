// The search field: kernels, modules, ops, inputs and lines of source whose text has the words.
import { announce, h } from "./dom.js";

const MOST = 60;

export class Search {
  constructor(app) {
    this.app = app;
    this.list = h("ul", { class: "found", role: "listbox", id: "found", "aria-label": "Found", hidden: true });
    this.field = h("input", {
      type: "search",
      placeholder: "Search  /",
      "aria-label": "Search kernels, modules, ops and lines",
      role: "combobox",
      "aria-controls": "found",
      "aria-expanded": "false",
      autocomplete: "off",
      spellcheck: "false",
      oninput: () => this.#find(),
      onkeydown: (event) => this.#key(event),
      onblur: () => setTimeout(() => this.#close(), 150),
      onfocus: () => this.#find(),
    });
    this.element = h("div", { class: "search" }, this.field, this.list);
    this.chosen = 0;
    this.matches = [];
  }

  /** What can be found: {kind, text, note, low, ...what to select}. */
  #entries() {
    const { model } = this.app;
    const stage = model.graph;
    const entries = model.kernels.map((k) => ({
      kind: "kernel",
      text: k.name,
      note: k.module,
      kernel: k.index,
      hidden: k.lines.join(" "),
    }));
    const modules = new Map();
    for (const k of model.kernels) {
      const names = k.module.split(".");
      names.forEach((_, i) => {
        const path = names.slice(0, i + 1).join(".");
        if (path) modules.set(path, [...(modules.get(path) ?? []), k.index]);
      });
    }
    for (const [name, kernels] of modules) {
      const ops = kernels.reduce((sum, k) => sum + model.kernels[k].nodes.length, 0);
      entries.push({ kind: "module", text: name, note: `${kernels.length} kernels`, group: { name, kernels, ops } });
    }
    for (const source of stage.bySource.keys())
      entries.push({ kind: "line", text: source.split("/").at(-1), note: "", source });
    stage.nodes.forEach((node, i) => {
      const kind = stage.isInput(i) ? "input" : "op";
      entries.push({
        kind,
        text: stage.label(i),
        note: node.module || node.text,
        node: i,
        hidden: `${node.text} ${node.line ?? ""}`,
      });
    });
    for (const entry of entries) entry.low = `${entry.text} ${entry.note} ${entry.hidden ?? ""}`.toLowerCase();
    return entries;
  }

  #find() {
    this.entries ??= this.#entries();
    const sought = this.field.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const all = sought.length ? this.entries.filter((entry) => sought.every((word) => entry.low.includes(word))) : [];
    this.matches = all.slice(0, MOST);
    this.chosen = 0;
    this.app.found(all.filter((m) => m.kernel !== undefined || m.node !== undefined));
    this.#draw(sought.length > 0, all.length);
  }

  #draw(asked, all) {
    this.list.hidden = !asked;
    this.field.setAttribute("aria-expanded", String(asked));
    const row = (match, i) =>
      h(
        "li",
        {
          role: "option",
          id: `found-${i}`,
          "aria-selected": String(i === this.chosen),
          onpointerdown: (e) => (e.preventDefault(), this.#take(match)),
        },
        h("small", {}, match.kind),
        h("span", { class: "mono" }, match.text),
        h("span", { class: "hint" }, match.note),
      );
    const more = all > MOST ? h("li", { class: "hint", role: "presentation" }, `and ${all - MOST} more`) : null;
    const none = asked && !all ? h("li", { class: "hint", role: "presentation" }, "nothing found") : null;
    this.list.replaceChildren(...[...this.matches.map(row), more, none].filter(Boolean));
    if (asked) announce(`${all} found`);
    this.#mark();
  }

  #mark() {
    [...this.list.querySelectorAll("[role=option]")].forEach((row, i) =>
      row.setAttribute("aria-selected", String(i === this.chosen)),
    );
    const row = this.list.children[this.chosen];
    row?.scrollIntoView({ block: "nearest" });
    if (row?.id) this.field.setAttribute("aria-activedescendant", row.id);
    else this.field.removeAttribute("aria-activedescendant");
  }

  #take(match) {
    const { app } = this;
    const graph = app.model.main;
    if (match.group) app.selection.select({ group: match.group });
    else if (match.source) app.selection.select({ source: match.source });
    else if (match.node !== undefined) app.selection.select({ stage: graph, node: match.node });
    else app.selection.select({ kernel: match.kernel });
    this.#close();
  }

  #close() {
    this.list.hidden = true;
    this.field.setAttribute("aria-expanded", "false");
  }

  #key(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.chosen = Math.max(0, Math.min(this.matches.length - 1, this.chosen + step));
      this.#mark();
    } else if (event.key === "Enter" && this.matches[this.chosen]) {
      this.#take(this.matches[this.chosen]);
    } else if (event.key === "Escape") {
      this.field.value = "";
      this.app.found([]);
      this.#close();
      this.field.blur();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  }
}

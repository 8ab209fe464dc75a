// Where time or bytes go: modules as nested areas, kernels as the innermost. A click on a module zooms into it.
import { hierarchy as tree, treemap } from "d3-hierarchy";
import { roofKind } from "./data.js";
import { announce, h } from "./dom.js";
import { bytes, percent, seconds } from "./format.js";

const LEAST = [6, 6]; // pixels: smaller areas are not drawn
const WHOLE = [64, 44]; // and what is in smaller ones neither
const HEAD = 20;

export class Treemap {
  /** root: of hierarchy(); key: "seconds" or "bytes"; onselect(item) */
  constructor(root, key, onselect) {
    Object.assign(this, { root, key, onselect, top: root });
    this.path = h("nav", { class: "path", "aria-label": "Zoomed to" });
    this.area = h("div", {
      class: "treemap",
      role: "group",
      "aria-label": "Treemap by module and kernel",
      onkeydown: (e) => this.#key(e),
    });
    this.element = h("div", { class: "treemap-box" }, this.path, this.area);
    new ResizeObserver(() => this.draw()).observe(this.area);
  }

  zoom(item) {
    this.top = item;
    this.draw();
    announce(`${item.path || item.name}: ${this.cost(item)}`);
  }

  cost(item) {
    const value = item[this.key];
    return `${(this.key === "seconds" ? seconds : bytes)(value)}, ${percent(value, this.root[this.key])}`;
  }

  select(kernel) {
    this.kernel = kernel;
    for (const cell of this.area.children) cell.classList.toggle("selected", cell.dataset.kernel === String(kernel));
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.area;
    if (!width || !height) return;
    const kids = (item) => (item.kind === "kernel" ? null : item.children.filter((child) => child[this.key] > 0));
    const root = tree(this.top, kids)
      .sum((item) => (item.kind === "kernel" || !item.children.length ? item[this.key] : 0))
      .sort((a, b) => b.value - a.value);
    treemap()
      .size([width, height])
      .paddingInner(2)
      .paddingOuter((d) => (d.depth ? 2 : 0))
      .paddingTop((d) => (d.depth ? HEAD : 0))
      .round(true)(root);
    const cells = [];
    const add = (cell) => {
      const [w, h] = [cell.x1 - cell.x0, cell.y1 - cell.y0];
      if (w < LEAST[0] || h < LEAST[1]) return;
      const small = w < WHOLE[0] || h < WHOLE[1];
      cells.push(this.#cell(cell, small));
      if (!small) cell.children?.forEach(add);
    };
    root.children?.forEach(add);
    this.area.replaceChildren(...cells);
    this.#drawPath();
  }

  /** What gives it its colour: the kind of kernels that most of a group is, or how near the roof it is. */
  #kind(item) {
    if (this.byRoof) return roofKind(item);
    if (item.kind === "kernel" || !item.children.length) return item.color;
    const most = item.children.reduce((a, b) => (b[this.key] > a[this.key] ? b : a));
    return this.#kind(most);
  }

  #cell({ data: item, x0, y0, x1, y1, depth }, small) {
    const leaf = item.kind === "kernel" || !item.children.length;
    const wide = x1 - x0 > 30 && y1 - y0 >= 16;
    const classes = ["cell", leaf || small ? `kind-${this.#kind(item)}` : `depth${depth % 2}`, leaf ? "leaf" : "group"];
    if (small) classes.push("small");
    if (leaf && item.kernel === this.kernel) classes.push("selected");
    return h(
      "button",
      {
        type: "button",
        class: classes.join(" "),
        title: `${item.path || item.name}\n${this.cost(item)}`,
        "aria-label": `${leaf ? "kernel" : "module"} ${item.path || item.name}: ${this.cost(item)}`,
        "data-kernel": item.kernel,
        style: { left: `${x0}px`, top: `${y0}px`, width: `${x1 - x0}px`, height: `${y1 - y0}px` },
        onclick: () => (leaf ? this.onselect(item) : this.zoom(item)),
      },
      wide ? h("span", { class: "name" }, item.name) : null,
      wide && x1 - x0 > 130 ? h("span", { class: "cost" }, this.cost(item)) : null,
    );
  }

  #drawPath() {
    const steps = [];
    for (let item = this.top; item; item = item.parent) steps.unshift(item);
    const here = steps.length - 1;
    this.path.replaceChildren(
      ...steps.map((item, i) =>
        i === here
          ? h("span", { "aria-current": "true" }, `${item.name} (${this.cost(item)})`)
          : h("button", { type: "button", onclick: () => this.zoom(item) }, item.name),
      ),
    );
  }

  #key(event) {
    if (event.key === "Escape" && this.top.parent) {
      this.zoom(this.top.parent);
      event.stopPropagation();
    }
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    const cells = [...this.area.children];
    cells[Math.max(0, Math.min(cells.length - 1, cells.indexOf(document.activeElement) + step))]?.focus();
    event.preventDefault();
  }
}

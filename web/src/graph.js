// The graph tab: an outline, which is also what screen readers read, and a drawing of the same tree beside it. Both fold together.
import { announce, choice, h } from "./dom.js";
import { bytes, plural, seconds, type } from "./format.js";
import { hierarchy, outline, unfold } from "./hierarchy.js";
import { arrange, corner } from "./layout.js";
import { itemAt, Painter, readColours } from "./canvas.js";
import { Table } from "./table.js";

const SLICE = 10; // milliseconds of layout between two frames
const LINKS = 300; // edges drawn of what is selected
const SPAN = [0.004, 3]; // least and greatest scale
const LEGIBLE = 0.8; // the least scale at which text of boxes can be read
const FOLDED = 3000; // more ops than that are folded at first

export class GraphTab {
  constructor(panel, app) {
    Object.assign(this, {
      app,
      model: app.model,
      view: { x: 0, y: 0, scale: 1 },
      stageName: app.model.main,
      trees: {},
    });
    this.canvas = h("canvas", { tabindex: 0, role: "img", "aria-describedby": "graph-keys" });
    this.map = h("canvas", { class: "minimap", "aria-hidden": "true" });
    this.busy = h("div", { class: "busy", role: "status", hidden: true });
    this.outline = this.#makeOutline();
    this.box = h("div", { class: "drawing" }, this.canvas, this.map, this.busy);
    this.depths = choice(
      "Depth",
      [
        ["module", "Modules"],
        ["kernel", "Kernels"],
        ["op", "Ops"],
      ],
      "kernel",
      (d) => this.setDepth(d),
    );
    const stages = choice(
      "Stage",
      app.model.report.stages.map((s) => [s, s]),
      this.stageName,
      (s) => this.setStage(s),
    );
    const button = (text, label, onclick) =>
      h("button", { type: "button", class: "tool", "aria-label": label, title: label, onclick }, text);
    this.painter = new Painter(this.canvas, this.model);
    this.small = new Painter(h("canvas"), this.model);
    panel.append(
      h(
        "div",
        { class: "bar" },
        this.depths,
        app.model.report.stages.length > 1 ? stages : null,
        app.colouring((byRoof) => this.colour(byRoof)),
        button("+", "Zoom in", () => this.zoom(1.4)),
        button("\u2212", "Zoom out", () => this.zoom(1 / 1.4)),
        button("Fit", "Fit all", () => this.fit()),
        h(
          "span",
          { id: "graph-keys", class: "hint" },
          "drag to pan, wheel to zoom, double click or Enter folds, arrows move",
        ),
      ),
      h("div", { class: "split" }, h("div", { class: "outline" }, this.outline.element), this.box),
    );
    this.#listen();
    app.selection.subscribe((from) => from !== this && this.#follow());
    this.ready = this.setStage(this.stageName);
  }

  // ---- what is shown

  async setStage(name) {
    this.wanted = name;
    const stage = await this.model.stage(name);
    if (name !== this.wanted) return; // another one was asked for meanwhile
    [this.stageName, this.stage] = [name, stage];
    this.items = this.trees[name] ??= hierarchy(this.model, this.stage);
    const deep = name === this.model.main && this.model.kernels.length;
    this.depths.querySelector('[value="kernel"]').hidden = !deep;
    await this.setDepth(deep || this.stage.nodes.length > FOLDED ? "module" : "op");
    this.#follow();
  }

  async setDepth(depth) {
    this.depth = depth;
    this.depths.press(depth);
    unfold(this.items.root, depth);
    await this.arrange();
    this.begin();
  }

  async toggle(item, anchor = item) {
    if (!item.children.length) return;
    const before = corner(anchor);
    item.open = !item.open;
    await this.arrange();
    const after = corner(anchor);
    this.view.x += after[0] - before[0];
    this.view.y += after[1] - before[1];
    announce(`${item.path || item.name} ${item.open ? "unfolded" : "folded"}`);
    this.draw();
  }

  /** Lays out in slices, so that the page goes on answering. */
  async arrange() {
    const steps = arrange(this.items.root);
    const turn = (this.turn = (this.turn ?? 0) + 1);
    let done = 0;
    for (let begin = performance.now(); !steps.next().done; done++) {
      if (performance.now() - begin < SLICE) continue;
      this.busy.hidden = false;
      this.busy.textContent = `laying out: ${done} groups`;
      await new Promise((resolve) => requestAnimationFrame(resolve));
      if (turn !== this.turn) return;
      begin = performance.now();
    }
    this.busy.hidden = this.items.root.children.length > 0;
    this.busy.textContent = "No ops: inputs are outputs as they are";
    this.mapped = false;
    this.outline.rows = [...outline(this.items.root)];
    this.#showRow();
    this.canvas.setAttribute(
      "aria-label",
      `Drawing of ${plural(this.outline.rows.length, "item")}; the outline beside it has them as text`,
    );
  }

  // ---- view

  draw() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => this.#paint());
  }

  #paint() {
    this.pending = false;
    const { clientWidth: width, clientHeight: height } = this.box;
    const root = this.items?.root;
    if (!width || !root?.w) return;
    const begin = performance.now();
    this.#size(this.canvas, width, height);
    this.painter.draw(root, this.stage, this.view, width, height);
    this.#paintMap(root, width, height);
    this.drawn = performance.now() - begin;
  }

  #size(canvas, width, height) {
    const [w, h] = [Math.round(width * devicePixelRatio), Math.round(height * devicePixelRatio)];
    if (canvas.width === w && canvas.height === h) return;
    Object.assign(canvas, { width: w, height: h });
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  }

  /** The whole drawing, painted once for each layout, and a frame around what is in sight. */
  #paintMap(root, width, height) {
    const scale = Math.min(200 / root.w, 150 / root.h);
    const [w, h] = [Math.max(24, root.w * scale), Math.max(24, root.h * scale)];
    this.mapScale = scale;
    if (!this.mapped) {
      this.#size(this.map, w, h);
      this.#size(this.small.canvas, w, h);
      this.small.draw(root, this.stage, { x: 0, y: 0, scale }, w, h);
      this.mapped = true;
    }
    const c = this.map.getContext("2d");
    c.setTransform(1, 0, 0, 1, 0, 0);
    c.drawImage(this.small.canvas, 0, 0);
    c.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    c.strokeStyle = this.small.colours.accent;
    c.lineWidth = 1.5;
    const { x, y, scale: s } = this.view;
    c.strokeRect(x * scale, y * scale, (width / s) * scale, (height / s) * scale);
  }

  /** The first view: all of it, if it can be read then, or as much as can be read from its top. The minimap has all of it. */
  begin() {
    this.fit();
    const { clientWidth: width } = this.box;
    if (!width || this.view.scale >= LEGIBLE) return;
    const { root } = this.items;
    const [first] = [...root.children].sort((a, b) => a.y - b.y);
    const middle = first ? first.x + first.w / 2 : root.w / 2;
    this.view = { scale: LEGIBLE, x: middle - width / LEGIBLE / 2, y: -12 / LEGIBLE };
    this.draw();
  }

  fit(item = this.items.root) {
    const { clientWidth: width, clientHeight: height } = this.box;
    if (!width || !item.w) return;
    const [x, y] = corner(item);
    const [across, down] = [(width - 24) / item.w, (height - 24) / item.h];
    // What is long and thin is shown from its top, as a part that can be read; the minimap has all of it.
    const thin = across > 3 * down;
    const scale = Math.max(SPAN[0], thin ? Math.min(0.7, across, 10 * down) : Math.min(1, across, down));
    this.view = {
      scale,
      x: x - (width / scale - item.w) / 2,
      y: thin ? y - 12 / scale : y - (height / scale - item.h) / 2,
    };
    this.draw();
  }

  zoom(factor, px = this.box.clientWidth / 2, py = this.box.clientHeight / 2) {
    const { x, y, scale } = this.view;
    const next = Math.max(SPAN[0], Math.min(SPAN[1], scale * factor));
    this.view = { scale: next, x: x + px / scale - px / next, y: y + py / scale - py / next };
    this.draw();
  }

  /** Brings an item into sight, so large that it can be read. */
  centre(item) {
    const { clientWidth: width, clientHeight: height } = this.box;
    const shown = item.shown;
    const scale = Math.max(this.view.scale, 0.7);
    const [x, y] = corner(shown);
    this.view = {
      scale,
      x: x + shown.w / 2 - width / scale / 2,
      y: y + Math.min(shown.h, height / scale) / 2 - height / scale / 2,
    };
    this.draw();
  }

  colour(byRoof) {
    this.painter.byRoof = this.small.byRoof = byRoof;
    this.mapped = false;
    this.draw();
  }

  repaint() {
    this.painter.colours = this.small.colours = readColours();
    this.mapped = false;
    this.draw();
  }

  show() {
    this.ready.then(() => (this.stale ? this.#follow() : this.draw()));
  }

  // ---- selection

  select(item) {
    this.item = item;
    this.#showRow();
    this.#link();
    const { selection } = this.app;
    if (item.node !== undefined) selection.select({ stage: this.stageName, node: item.node }, this);
    else if (item.kernel !== undefined) selection.select({ kernel: item.kernel }, this);
    else
      selection.select({ group: { name: item.path || item.name, kernels: [...kernelsIn(item)], ops: item.ops } }, this);
    this.draw();
  }

  /** What was selected elsewhere. */
  async #follow() {
    if (!this.items) return;
    const { selection } = this.app;
    let item = null;
    if (selection.node !== null || selection.source !== null) {
      const [first] = selection.in(this.stage);
      item = this.items.nodes[first] ?? null;
    }
    if (!item && selection.kernel !== null) {
      if (this.items.kernels.length) item = this.items.kernels[selection.kernel];
      else item = this.items.nodes[[...selection.in(this.stage)][0]] ?? null;
    }
    this.item = item;
    if (item && item.shown !== item) {
      item.reveal();
      await this.arrange();
    }
    this.#showRow();
    this.#link();
    if (item && this.box.clientWidth) this.centre(item);
    else if (this.stale) this.begin();
    this.stale = !this.box.clientWidth;
    this.draw();
  }

  find(matches) {
    this.painter.found = new Set(
      [...matches].map(
        ({ kernel, node }) => (node !== undefined ? this.items.nodes[node] : this.items.kernels[kernel])?.shown,
      ),
    );
    this.draw();
  }

  #showRow() {
    this.outline.show(this.item ? this.outline.rows.indexOf(this.item) : -1);
  }

  /** Edges of the selected one to what it reads and to what reads it. */
  #link() {
    const links = new Map();
    const inside = this.item ? [...opsIn(this.item)] : [];
    const add = (from, to) => {
      const [a, b] = [this.items.nodes[from]?.shown, this.items.nodes[to]?.shown];
      if (a && b && a !== b && links.size < LINKS) links.set(`${a.id} ${b.id}`, [a, b]);
    };
    for (const { node } of inside) {
      for (const operand of this.stage.nodes[node].operands) add(operand, node);
      for (const user of this.stage.users[node]) add(node, user);
    }
    this.painter.selected = this.item;
    this.painter.links = [...links.values()];
  }

  // ---- input

  #makeOutline() {
    const cost = (item) =>
      item.seconds && this.model.run ? seconds(item.seconds) : item.bytes ? bytes(item.bytes) : "";
    return new Table({
      label: "Outline of the graph",
      head: false,
      rowHeight: 24,
      className: "tree",
      columns: [
        { width: "1fr", text: (item) => this.#rowLabel(item) },
        { width: "max-content", numeric: true, text: cost },
      ],
      tree: (item) => ({ level: item.depth, expanded: item.children.length ? item.open : undefined }),
      onselect: (item) => (this.select(item), this.centre(item)),
      onopen: (item) => this.toggle(item),
      onfold: (item) => this.toggle(item),
    });
  }

  #rowLabel(item) {
    const folds = item.children.length ? (item.open ? "\u25be" : "\u25b8") : "";
    const what = item.node !== undefined ? `${item.name} ${type(this.stage.nodes[item.node])}` : item.name;
    return h(
      "span",
      { style: { paddingLeft: `${(item.depth - 1) * 14}px` }, class: item.kind },
      h("span", { class: "fold", "data-fold": folds ? "" : null, "aria-hidden": "true" }, folds),
      item.kind === "kernel" ? h("i", { class: `dot kind-${item.color}` }) : null,
      what,
    );
  }

  #listen() {
    const { canvas, map } = this;
    new ResizeObserver(() => this.draw()).observe(this.box);
    canvas.addEventListener("wheel", (e) => this.#wheel(e), { passive: false });
    canvas.addEventListener("pointerdown", (e) => this.#drag(e));
    canvas.addEventListener("dblclick", (e) => {
      const item = this.#at(e);
      if (item) this.toggle(item);
    });
    canvas.addEventListener("keydown", (e) => this.#key(e));
    const jump = (e) => {
      if (!e.buttons) return;
      const { width, height } = this.canvas.getBoundingClientRect();
      this.view.x = e.offsetX / this.mapScale - width / this.view.scale / 2;
      this.view.y = e.offsetY / this.mapScale - height / this.view.scale / 2;
      this.draw();
    };
    map.addEventListener("pointerdown", jump);
    map.addEventListener("pointermove", jump);
  }

  #at(event) {
    const { x, y, scale } = this.view;
    return itemAt(this.items.root, x + event.offsetX / scale, y + event.offsetY / scale);
  }

  #wheel(event) {
    event.preventDefault();
    if (event.shiftKey || event.deltaX) {
      this.view.x += (event.deltaX || event.deltaY) / this.view.scale;
      if (!event.shiftKey) this.view.y += event.deltaY / this.view.scale;
      this.draw();
    } else this.zoom(Math.exp(-event.deltaY / 500), event.offsetX, event.offsetY);
  }

  #drag(event) {
    const start = { x: event.clientX, y: event.clientY, view: { ...this.view }, far: false };
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.onpointermove = (e) => {
      const [dx, dy] = [e.clientX - start.x, e.clientY - start.y];
      start.far ||= Math.hypot(dx, dy) > 4;
      if (!start.far) return;
      this.view.x = start.view.x - dx / this.view.scale;
      this.view.y = start.view.y - dy / this.view.scale;
      this.draw();
    };
    this.canvas.onpointerup = this.canvas.onpointercancel = (e) => {
      this.canvas.onpointermove = this.canvas.onpointerup = this.canvas.onpointercancel = null;
      const item = start.far ? null : this.#at(e);
      if (item) this.select(item);
    };
  }

  #key(event) {
    const arrows = { ArrowDown: [0, 1], ArrowUp: [0, -1], ArrowRight: [1, 0], ArrowLeft: [-1, 0] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in arrows) this.#move(...arrows[event.key]);
    else if (event.key === "Enter" && this.item) this.toggle(this.item);
    else if (event.key === "Backspace" && this.item?.parent?.parent)
      (this.select(this.item.parent), this.centre(this.item));
    else if (event.key === "+" || event.key === "=") this.zoom(1.4);
    else if (event.key === "-") this.zoom(1 / 1.4);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  /** To the nearest box in a direction, within the same group. */
  #move(dx, dy) {
    const from = this.item?.shown ?? this.items.root.children[0];
    const centre = (i) => [i.x + i.w / 2, i.y + i.h / 2];
    const [x, y] = centre(from);
    let [best, least] = [this.item ? null : from, Infinity];
    for (const other of this.item ? from.parent.children : []) {
      const [ox, oy] = centre(other);
      const along = (ox - x) * dx + (oy - y) * dy;
      const across = Math.abs((ox - x) * dy) + Math.abs((oy - y) * dx);
      if (other !== from && along > 1 && along + 2 * across < least) [best, least] = [other, along + 2 * across];
    }
    if (!best) return;
    this.select(best);
    this.centre(best);
    announce(best.path || best.name);
  }
}

export function* kernelsIn(item) {
  if (item.kernel !== undefined) yield item.kernel;
  else for (const child of item.children) yield* kernelsIn(child);
}

function* opsIn(item) {
  if (item.node !== undefined) yield item;
  for (const child of item.children) yield* opsIn(child);
}

// The drawing of a tree of boxes: what is in sight, in as much detail as can be seen.
import { roofKind, ROOFS } from "./data.js";
import { colour } from "./dom.js";
import { bytes, opName, seconds, type } from "./format.js";
import { corner, TITLE } from "./layout.js";

const FONT = "system-ui, sans-serif";
const MONO = "ui-monospace, monospace";
const SMALL = 5; // pixels: a box lower than that is a mark
const FAINT = 16; // pixels: a kernel lower than that has the stronger colour of its kind
const KINDS = ["map", "row", "column", "scan", "index", "matmul", "concat", "update", "extern", "block", "routine"];
const SHARES = ROOFS.map(([kind]) => kind);

export function readColours() {
  const names = [
    "surface",
    "raised",
    "sunken",
    "text",
    "muted",
    "border",
    "accent",
    "found",
    "edge",
    "page",
    ...[...KINDS, ...SHARES].flatMap((k) => [`kind-${k}`, `dot-${k}`]),
  ];
  return Object.fromEntries(names.map((name) => [name, colour(name)]));
}

export class Painter {
  constructor(canvas, model) {
    Object.assign(this, { canvas, model, context: canvas.getContext("2d"), colours: readColours() });
    this.found = new Set();
    this.selected = null;
  }

  /** view: {x, y, scale}: the point of the drawing in the corner of the canvas, and pixels for each of its units. */
  draw(root, stage, view, width, height) {
    const c = this.context;
    const ratio = devicePixelRatio;
    Object.assign(this, {
      stage,
      view,
      sight: [view.x, view.y, view.x + width / view.scale, view.y + height / view.scale],
    });
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.fillStyle = this.colours.page;
    c.fillRect(0, 0, width, height);
    c.setTransform(
      view.scale * ratio,
      0,
      0,
      view.scale * ratio,
      -view.x * view.scale * ratio,
      -view.y * view.scale * ratio,
    );
    c.textBaseline = "middle";
    c.lineJoin = "round";
    this.boxes = 0;
    this.#children(root, 0, 0);
    if (this.selected) this.#select(this.selected);
  }

  #inSight(x, y, w, h) {
    const [left, top, right, bottom] = this.sight;
    return x < right && y < bottom && x + w > left && y + h > top;
  }

  #children(group, x, y) {
    if (Math.min(group.w, group.h) * this.view.scale > 60) this.#edges(group, x, y);
    for (const child of group.children) {
      const [cx, cy] = [x + child.x, y + child.y];
      if (!this.#inSight(cx, cy, child.w, child.h)) continue;
      this.boxes++;
      if (child.open && child.children.length) this.#group(child, cx, cy);
      else this.#box(child, cx, cy);
    }
  }

  #edges(group, x, y) {
    const c = this.context;
    c.strokeStyle = this.colours.edge;
    c.lineWidth = Math.max(1, 1 / this.view.scale);
    c.beginPath();
    for (const { points } of group.lines) {
      c.moveTo(x + points[0][0], y + points[0][1]);
      const last = points.length - 1;
      for (let i = 1; i < last; i++) {
        const [px, py] = points[i];
        const [qx, qy] = points[i + 1];
        c.quadraticCurveTo(
          x + px,
          y + py,
          x + (i + 1 === last ? qx : (px + qx) / 2),
          y + (i + 1 === last ? qy : (py + qy) / 2),
        );
      }
      if (last === 1) c.lineTo(x + points[1][0], y + points[1][1]);
      if (this.view.scale > 0.35) {
        const [ex, ey] = [x + points[last][0], y + points[last][1]];
        c.moveTo(ex - 3.5, ey - 6);
        c.lineTo(ex, ey);
        c.lineTo(ex + 3.5, ey - 6);
      }
    }
    c.stroke();
  }

  #fill(item) {
    const { colours } = this;
    const strong = item.h * this.view.scale < FAINT;
    const kind = this.byRoof ? roofKind(item) : item.color;
    if (item.kind === "kernel") return colours[`${strong ? "dot" : "kind"}-${kind}`] ?? colours.surface;
    if (this.byRoof && item.timed > 0 && !item.open) return colours[`kind-${kind}`];
    if (item.kind === "op") return item.parent.kind === "kernel" ? colours.surface : colours.raised;
    return item.depth % 2 ? colours.raised : colours.sunken;
  }

  #frame(item, x, y, radius) {
    const c = this.context;
    c.fillStyle = this.#fill(item);
    if (item.h * this.view.scale < SMALL) {
      c.fillRect(x, y, item.w, item.h);
      return false;
    }
    c.beginPath();
    c.roundRect(x, y, item.w, item.h, radius);
    c.fill();
    c.lineWidth = Math.max(1, 1 / this.view.scale);
    c.strokeStyle = this.colours.border;
    if (this.found.has(item)) {
      c.lineWidth = 3 / Math.min(1, this.view.scale);
      c.strokeStyle = this.colours.found;
    }
    c.stroke();
    return true;
  }

  #text(text, x, y, width, size, colour, font = FONT) {
    const c = this.context;
    if (size * this.view.scale < SMALL) return;
    c.font = `${size}px ${font}`;
    c.fillStyle = colour;
    // Widths of letters differ, but a guess tells what surely fits.
    const most = Math.floor(width / (size * 0.52));
    let shown = text.length > most ? `${text.slice(0, Math.max(1, most - 1))}\u2026` : text;
    c.fillText(shown, x, y, width);
  }

  #group(item, x, y) {
    if (!this.#frame(item, x, y, 8)) return;
    const { colours } = this;
    const name = item.kind === "kernel" ? item.name : item.path || item.name;
    this.#text("\u2212", x + 10, y + TITLE / 2, 12, 15, item.kind === "kernel" ? colours.text : colours.muted);
    this.#text(name, x + 24, y + TITLE / 2, item.w - 34, 13, colours.text, item.kind === "kernel" ? MONO : FONT);
    this.#children(item, x, y);
  }

  #box(item, x, y) {
    if (!this.#frame(item, x, y, item.kind === "op" ? 5 : 8)) return;
    if (item.kind === "op") this.#op(item, x, y);
    else this.#folded(item, x, y);
  }

  #op(item, x, y) {
    const node = this.stage.nodes[item.node];
    const inputs = node.operands.map((i) => this.stage.nodes[i].name).filter(Boolean);
    this.#text(opName(node.op), x + 8, y + 11, item.w - 16, 12, this.colours.text, MONO);
    this.#text(
      inputs.length ? inputs.join(", ") : type(node),
      x + 8,
      y + 25,
      item.w - 16,
      10,
      this.colours.muted,
      MONO,
    );
  }

  #folded(item, x, y) {
    const { colours } = this;
    const cost = this.model.run && item.seconds ? seconds(item.seconds) : bytes(item.bytes);
    const kernel = item.kind === "kernel";
    const what = kernel
      ? `${item.color}, ${item.ops} op${item.ops === 1 ? "" : "s"}`
      : item.kernels
        ? `${item.kernels} kernels`
        : `${item.ops} ops`;
    this.#text("+", x + 10, y + 16, 12, 15, kernel ? colours.text : colours.muted);
    this.#text(item.name, x + 24, y + 16, item.w - 34, 13, colours.text, kernel ? MONO : FONT);
    this.#text(`${what}, ${cost}`, x + 24, y + 34, item.w - 34, 11, kernel ? colours.text : colours.muted);
  }

  #select(item) {
    const c = this.context;
    const shown = item.shown;
    const [x, y] = corner(shown);
    const width = 2.5 / Math.min(1, this.view.scale);
    c.strokeStyle = this.colours.accent;
    c.lineWidth = width / 2;
    c.globalAlpha = 0.8;
    c.beginPath();
    for (const [from, to] of this.links ?? []) this.#link(from, to);
    c.stroke();
    c.globalAlpha = 1;
    c.lineWidth = width;
    c.beginPath();
    c.roundRect(x, y, shown.w, shown.h, 8);
    c.stroke();
  }

  #link(from, to) {
    const c = this.context;
    const [ax, ay] = corner(from);
    const [bx, by] = corner(to);
    const [x0, y0, x1, y1] = [ax + from.w / 2, ay + from.h, bx + to.w / 2, by];
    const bend = Math.max(30, Math.abs(y1 - y0) / 2.5);
    c.moveTo(x0, y0);
    c.bezierCurveTo(x0, y0 + bend, x1, y1 - bend, x1, y1);
  }
}

/** The innermost item that is drawn at a point of the drawing. */
export function itemAt(group, x, y) {
  for (const child of group.children) {
    if (x < child.x || y < child.y || x > child.x + child.w || y > child.y + child.h) continue;
    return child.open && child.children.length ? (itemAt(child, x - child.x, y - child.y) ?? child) : child;
  }
  return null;
}

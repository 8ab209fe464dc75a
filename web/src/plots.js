// Two plots: the roofline, and memory over launches. Each has a table with the same as text.
import { h, legend, svg } from "./dom.js";
import { bytes, count, layers, percent, plural, rate, seconds, type } from "./format.js";
import { ROOF } from "./overview.js";
import { Table } from "./table.js";

const [WIDTH, HEIGHT] = [1100, 400];
const EDGE = { left: 104, right: 20, top: 16, bottom: 44 };
const MOST = 2000; // points drawn: those of the longest launches

/** Both axes: a function from values to pixels. */
function scale(low, high, from, to, log = false) {
  const f = log ? Math.log10 : (x) => x;
  return (x) => from + ((f(x) - f(low)) / (f(high) - f(low) || 1)) * (to - from);
}

function decades(low, high) {
  const ticks = [];
  for (let e = Math.ceil(Math.log10(low)); e <= Math.floor(Math.log10(high)); e++) ticks.push(10 ** e);
  return ticks;
}

function evenly(high) {
  const step = 10 ** Math.floor(Math.log10(high / 4 || 1));
  const wide = [1, 2, 5, 10].map((m) => m * step).find((s) => high / s <= 6) ?? step * 10;
  const ticks = [];
  for (let x = 0; x <= high; x += wide) ticks.push(x);
  return ticks;
}

function axes(x, y, xTicks, yTicks, xText, yText, titles) {
  const [left, bottom] = [EDGE.left, HEIGHT - EDGE.bottom];
  return [
    ...xTicks.map((t) => [
      svg("line", { class: "grid", x1: x(t), x2: x(t), y1: EDGE.top, y2: bottom }),
      svg("text", { class: "tick", x: x(t), y: bottom + 16, "text-anchor": "middle" }, xText(t)),
    ]),
    ...yTicks.map((t) => [
      svg("line", { class: "grid", x1: left, x2: WIDTH - EDGE.right, y1: y(t), y2: y(t) }),
      svg("text", { class: "tick", x: left - 6, y: y(t) + 4, "text-anchor": "end" }, yText(t)),
    ]),
    svg(
      "text",
      { class: "title", x: (left + WIDTH - EDGE.right) / 2, y: HEIGHT - 6, "text-anchor": "middle" },
      titles[0],
    ),
    svg(
      "text",
      { class: "title", x: 14, y: HEIGHT / 2, transform: `rotate(-90 14 ${HEIGHT / 2})`, "text-anchor": "middle" },
      titles[1],
    ),
  ];
}

function plot(label, ...children) {
  return svg(
    "svg",
    { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label },
    ...children,
  );
}

// ---- roofline

export class RooflineTab {
  constructor(panel, app) {
    Object.assign(this, { app, model: app.model });
    const moved = (l) => l.bytes_read + l.bytes_written;
    this.launches = app.model.run.kernels.map((l, i) => ({
      ...l,
      index: i,
      bytes: moved(l),
      intensity: l.flops / moved(l),
      speed: l.flops / l.seconds,
    }));
    this.points = this.launches
      .filter((l) => l.flops > 0 && l.bytes > 0 && l.seconds > 0)
      .sort((a, b) => b.seconds - a.seconds);
    this.table = this.#table();
    const absent = this.launches.length - this.points.length;
    const note = "A dot is a launch, its area its time; the lines are what this machine can do";
    const left = `not here: ${plural(absent, "launch", "launches")} without arithmetic or of other libraries`;
    panel.append(
      h(
        "section",
        { class: "figure" },
        h("header", {}, h("h2", {}, "Roofline"), legend(this.points)),
        this.#plot(),
        h("p", { class: "note" }, absent ? `${note}; ${left}.` : `${note}.`),
      ),
      h("section", { class: "below" }, this.table.element),
    );
    app.selection.subscribe((from) => this.#follow(from));
    this.#follow();
  }

  #kernelOf(launch) {
    return this.model.kernels.find((k) => k.launch === launch.index)?.index ?? null;
  }

  #plot() {
    const { machine } = this.model.run;
    const roofs = machine?.bandwidth ?? [];
    const peak = machine?.flops_per_second;
    const xs = this.points.map((p) => p.intensity).concat(roofs.map(([, r]) => peak / r));
    const ys = this.points.map((p) => p.speed).concat(peak ?? []);
    if (!ys.length) return h("p", { class: "note" }, "No launch did arithmetic.");
    const [x0, x1] = [Math.min(...xs) / 2, Math.max(...xs) * 4];
    const [y0, y1] = [Math.min(...ys) / 2, Math.max(...ys) * 2];
    const x = scale(x0, x1, EDGE.left, WIDTH - EDGE.right, true);
    const y = scale(y0, y1, HEIGHT - EDGE.bottom, EDGE.top, true);
    const lines = roofs.flatMap(([size, r], i) => {
      const begin = Math.max(x0, y0 / r);
      const last = i === roofs.length - 1;
      const text = `${bytes(r)}/s${last ? ", memory" : `, up to ${bytes(size)}`}`;
      const angle = (Math.atan2(y(begin * 10 * r) - y(begin * r), x(begin * 10) - x(begin)) * 180) / Math.PI;
      const at = [x(begin) + 8, y(begin * r) + (i === 0 ? -8 : 12)];
      return [
        svg("line", { class: "roof", x1: x(begin), y1: y(begin * r), x2: x(peak / r), y2: y(peak) }),
        svg("text", { class: "tick", x: at[0], y: at[1], transform: `rotate(${angle} ${at[0]} ${at[1]})` }, text),
      ];
    });
    if (peak) {
      const ridge = Math.min(...roofs.map(([, r]) => peak / r));
      lines.push(
        svg("line", { class: "roof", x1: x(ridge), x2: x(x1), y1: y(peak), y2: y(peak) }),
        svg(
          "text",
          { class: "tick", x: x(x1), y: y(peak) - 6, "text-anchor": "end" },
          `${rate(peak, "FLOP")}, ${plural(machine.threads, "thread")}`,
        ),
      );
    }
    this.dots = this.points
      .slice(0, MOST)
      .reverse()
      .map((p) => this.#dot(p, x, y));
    const flop = (t) => rate(t, "FLOP");
    const ticks = (t) => (t >= 1 ? count(t) : String(t));
    return plot(
      "Roofline: arithmetic per byte against arithmetic per second; the table below has the same",
      ...axes(x, y, decades(x0, x1), decades(y0, y1), ticks, flop, [
        "operations per byte moved",
        "operations per second",
      ]),
      lines,
      this.dots,
    );
  }

  #dot(p, x, y) {
    const r = 3 + 14 * Math.sqrt(p.seconds / this.model.seconds);
    const title = svg("title", {}, `${p.name}\n${seconds(p.seconds)}, ${rate(p.speed, "FLOP")}, ${bytes(p.bytes)}`);
    return svg(
      "circle",
      {
        class: `point kind-${p.kind}`,
        cx: x(p.intensity),
        cy: y(p.speed),
        r,
        "data-launch": p.index,
        onclick: () => this.app.selection.select({ kernel: this.#kernelOf(p) }),
      },
      title,
    );
  }

  #table() {
    const lost = (l) => (l.roof_seconds === null || l.roof_seconds === undefined ? 0 : l.seconds - l.roof_seconds);
    const table = new Table({
      label: "Launches",
      columns: [
        {
          title: "kernel",
          width: "minmax(140px, 3fr)",
          text: (l) =>
            h(
              "span",
              { class: "name" },
              h("i", { class: `dot kind-${l.kind}` }),
              `${l.name}${l.rows > 1 ? ` \u00d7 ${l.rows}` : ""}`,
            ),
          sort: (l) => l.name,
        },
        { title: "time", width: "80px", numeric: true, text: (l) => seconds(l.seconds), sort: (l) => l.seconds },
        {
          title: "of roof",
          about: ROOF,
          width: "70px",
          numeric: true,
          text: (l) => (l.roof_seconds ? percent(l.roof_seconds, l.seconds) : ""),
          sort: (l) => (l.roof_seconds ?? 0) / l.seconds,
        },
        {
          title: "lost",
          about: "time beyond what this machine needs at least",
          width: "80px",
          numeric: true,
          text: (l) => (lost(l) > 0 ? seconds(lost(l)) : ""),
          sort: lost,
        },
        {
          title: "op/byte",
          about: "operations for each byte read or written",
          width: "80px",
          numeric: true,
          text: (l) => (l.flops ? Number(l.intensity.toPrecision(3)).toString() : ""),
          sort: (l) => l.intensity || 0,
        },
        {
          title: "arithmetic",
          width: "110px",
          numeric: true,
          text: (l) => (l.flops ? rate(l.speed, "FLOP") : ""),
          sort: (l) => l.speed || 0,
        },
        {
          title: "memory",
          width: "90px",
          numeric: true,
          text: (l) => rate(l.bytes / l.seconds, "B"),
          sort: (l) => l.bytes / l.seconds,
        },
        { title: "module", width: "minmax(70px, 1fr)", text: (l) => l.module, sort: (l) => l.module },
      ],
      rows: this.launches,
      onselect: (l) => this.app.selection.select({ kernel: this.#kernelOf(l) }, this),
      onopen: () => this.app.open("code"),
    });
    table.sortBy(table.columns[3], true);
    return table;
  }

  #follow(from) {
    const { kernel } = this.app.selection;
    const launch = kernel === null ? -1 : this.model.kernels[kernel].launch;
    for (const dot of this.dots ?? []) dot.classList.toggle("selected", dot.dataset.launch === String(launch));
    this.table.show(
      this.table.rows.findIndex((l) => l.index === launch),
      from !== this && launch >= 0,
    );
  }
}

// ---- memory

export class MemoryTab {
  constructor(panel, app) {
    Object.assign(this, { app, model: app.model });
    const nodes = app.model.graph.nodes;
    this.values = app.model.report.values.map(([node, first, last]) => ({
      node,
      first,
      last,
      bytes: nodes[node].bytes ?? 0,
      output: app.model.graph.outputs.has(node),
    }));
    this.launches = Math.max(0, ...app.model.kernels.map((k) => k.launch)) + 1;
    this.live = this.#count();
    this.at = this.live.indexOf(Math.max(...this.live));
    this.heading = h("h2", {});
    this.table = this.#table();
    this.#draw();
    panel.append(
      this.figure,
      h(
        "div",
        { class: "halves below" },
        h("section", {}, h("header", {}, this.heading), this.table.element),
        this.#keepers(),
      ),
    );
    app.selection.subscribe((from) => from !== this && this.#follow());
    this.#move(this.at);
  }

  /** Bytes that are live during each launch. */
  #count() {
    const change = new Array(this.launches + 1).fill(0);
    for (const v of this.values) {
      change[v.first] += v.bytes;
      change[v.last + 1] -= v.bytes;
    }
    let live = 0;
    return change.slice(0, -1).map((c) => (live += c));
  }

  #draw() {
    const peak = Math.max(1, ...this.live);
    this.x = scale(0, this.launches, EDGE.left, WIDTH - EDGE.right);
    const [x, y] = [this.x, scale(0, peak * 1.05, HEIGHT - EDGE.bottom, EDGE.top)];
    const kept = this.values.filter((v) => v.output).reduce((sum, v) => sum + v.bytes, 0);
    const steps = this.live.map((b, i) => `L${x(i).toFixed(1)} ${y(b).toFixed(1)}H${x(i + 1).toFixed(1)}`).join("");
    const area = svg("path", { class: "area", d: `M${x(0)} ${y(0)}${steps}V${y(0)}Z` });
    const line = svg("line", { class: "kept", x1: EDGE.left, x2: WIDTH - EDGE.right, y1: y(kept), y2: y(kept) });
    this.cursor = svg("line", { class: "cursor", y1: EDGE.top, y2: HEIGHT - EDGE.bottom });
    const shown = plot(
      `Bytes of values over ${this.launches} launches, ${bytes(peak)} at most`,
      ...axes(x, y, evenly(this.launches), evenly(peak * 1.05), count, bytes, ["launch", "bytes live"]),
      area,
      kept
        ? [line, svg("text", { class: "tick", x: EDGE.left + 6, y: y(kept) - 5 }, `${bytes(kept)} stay: outputs`)]
        : [],
      this.cursor,
    );
    shown.addEventListener("click", (e) => {
      const box = shown.getBoundingClientRect();
      const px = ((e.clientX - box.left) / box.width) * WIDTH;
      this.#move(Math.floor(((px - EDGE.left) / (WIDTH - EDGE.left - EDGE.right)) * this.launches));
    });
    const slider = h("input", {
      type: "range",
      min: 1,
      max: this.launches,
      value: this.at + 1,
      "aria-label": "Launch",
      oninput: (e) => this.#move(e.target.valueAsNumber - 1),
    });
    this.slider = slider;
    const note =
      "values that this run stores, from the launch that writes them to the last that reads them; one that takes the place of an input counts too";
    this.figure = h(
      "section",
      { class: "figure" },
      h("header", {}, h("h2", {}, "Memory"), h("span", { class: "hint" }, note)),
      shown,
      slider,
    );
  }

  #move(launch) {
    this.at = Math.max(0, Math.min(this.launches - 1, launch));
    const middle = (this.x(this.at) + this.x(this.at + 1)) / 2;
    this.cursor.setAttribute("x1", middle);
    this.cursor.setAttribute("x2", middle);
    this.slider.value = this.at + 1;
    const rows = this.values.filter((v) => v.first <= this.at && v.last >= this.at).sort((a, b) => b.bytes - a.bytes);
    this.heading.textContent = `Live in launch ${this.at + 1}: ${bytes(this.live[this.at] ?? 0)}, ${plural(rows.length, "value")}`;
    this.slider.setAttribute("aria-valuetext", this.heading.textContent);
    this.table.rows = rows;
  }

  #table() {
    const { nodes } = this.model.graph;
    const node = (v) => nodes[v.node];
    return new Table({
      label: "Values that are live",
      columns: [
        {
          title: "value",
          width: "minmax(90px, 1fr)",
          text: (v) => h("span", { class: "mono" }, this.model.graph.label(v.node)),
          sort: (v) => v.node,
        },
        {
          title: "type",
          width: "minmax(110px, 1fr)",
          text: (v) => h("span", { class: "mono" }, type(node(v))),
          sort: (v) => type(node(v)),
        },
        { title: "bytes", width: "76px", numeric: true, text: (v) => bytes(v.bytes), sort: (v) => v.bytes },
        {
          title: "launches",
          width: "96px",
          numeric: true,
          text: (v) => `${v.first + 1} to ${v.output ? "end" : v.last + 1}`,
          sort: (v) => v.last - v.first,
        },
        {
          title: "module",
          width: "minmax(80px, 1fr)",
          text: (v) => node(v).module ?? "",
          sort: (v) => node(v).module ?? "",
        },
      ],
      onselect: (v) => this.app.selection.select({ stage: this.model.main, node: v.node }, this),
      onopen: () => this.app.open("graph"),
    });
  }

  #keepers() {
    const keepers = this.model.run?.keepers;
    if (!keepers?.length) return null;
    const groups = new Map();
    for (const [what, kind, size] of keepers) {
      const key = `${layers(what)}\n${kind}`;
      const g = groups.get(key);
      groups.set(key, { what: g ? layers(what) : what, kind, size: (g?.size ?? 0) + size, count: (g?.count ?? 0) + 1 });
    }
    const table = new Table({
      label: "What keeps values",
      columns: [
        {
          title: "kept by",
          width: "minmax(120px, 2fr)",
          text: (g) => `${g.what}${g.count > 1 ? ` \u00d7 ${g.count}` : ""}`,
          sort: (g) => g.what,
        },
        {
          title: "value",
          width: "minmax(110px, 1fr)",
          text: (g) => h("span", { class: "mono" }, g.kind),
          sort: (g) => g.kind,
        },
        { title: "bytes", width: "80px", numeric: true, text: (g) => bytes(g.size), sort: (g) => g.size },
      ],
      rows: [...groups.values()].sort((a, b) => b.size - a.size),
    });
    return h("section", {}, h("header", {}, h("h2", {}, "What keeps what is kept")), table.element);
  }

  #follow() {
    const { kernel } = this.app.selection;
    if (kernel !== null) this.#move(this.model.kernels[kernel].launch);
  }
}

// What the file holds, read part by part, and who belongs to whom across the stages.
import { opName } from "./format.js";

/** One part of the file: JSON that was deflated and written in base64. */
async function part(name) {
  const element = document.querySelector(`script[data-part="${name}"]`);
  const packed = Uint8Array.from(atob(element.textContent), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  element.remove();
  return new Response(stream).json();
}

function group(items, keyOf) {
  const groups = new Map();
  items.forEach((item, i) => {
    const key = keyOf(item, i);
    if (key === undefined || key === "" || key === 0) return;
    if (groups.has(key)) groups.get(key).push(i);
    else groups.set(key, [i]);
  });
  return groups;
}

/** The nodes of one stage. `byCall`, `bySource`: numbers of nodes by the call, and by the line, that recorded them. */
class Stage {
  constructor(name, document) {
    this.name = name;
    this.nodes = document.nodes;
    this.planned = this.nodes.some((node) => node.kernel >= 0);
    this.outputs = new Set(document.outputs);
    this.byCall = group(this.nodes, (node) => node.call);
    this.bySource = group(this.nodes, (node) => node.source);
    this.users = this.nodes.map(() => []);
    this.nodes.forEach((node, i) => {
      for (const operand of new Set(node.operands)) this.users[operand].push(i);
    });
  }

  /** What is there before: inputs, and what no kernel has to compute. */
  isInput(i) {
    const { op, kernel } = this.nodes[i];
    return op === "input" || op === "scalar" || (this.planned && kernel < 0);
  }

  /** Did autograd record it? A file without the flag says so of what has its forward node beside it. */
  isBackward(i) {
    const { backward, forward } = this.nodes[i];
    return backward ?? forward !== undefined;
  }

  /** "forward", "backward", "update": what belongs to no module and was recorded after the first gradient updates. */
  phase(i) {
    this.firstGradient ??= this.nodes
      .filter((_, k) => this.isBackward(k))
      .reduce((least, node) => Math.min(least, node.call), Infinity);
    if (this.firstGradient === Infinity) return "";
    if (this.isBackward(i)) return "backward";
    return this.nodes[i].module || this.nodes[i].call < this.firstGradient ? "forward" : "update";
  }

  /** "attn.weight", "0.001", "%12 add": what a node is called where others name it. */
  label(i) {
    const { name, op, attrs } = this.nodes[i];
    return name || (op === "scalar" ? String(attrs.value) : `%${i} ${opName(op)}`);
  }
}

export class Model {
  /** Reads what every tab needs. */
  static async read() {
    const model = new Model();
    model.report = await part("report");
    model.stages = {};
    model.reading = {};
    model.main = model.report.stages.at(-1);
    if (model.main) await model.stage(model.main);
    model.addTimes();
    return model;
  }

  get kernels() {
    return this.report.kernels;
  }

  get run() {
    return this.report.run;
  }

  /** The stage of the kernels, or the only one. There is none in the page of a difference. */
  get graph() {
    return this.stages[this.main];
  }

  /** A word where the plan has no kernel, else "". */
  get nothing() {
    if (this.main !== "fused" || this.kernels.length) return "";
    return (
      "Nothing was left to run: all that was asked for is there already. What a function reads while it is recorded " +
      "(.item(), .cpu(), print) runs then, and is not shown."
    );
  }

  /** Read once, when first asked for. */
  stage(name) {
    this.reading[name] ??= part(name).then((document) => (this.stages[name] = new Stage(name, document)));
    return this.reading[name];
  }

  code() {
    return (this.reading.code ??= part("code"));
  }

  /** [kind, before, after] of both graphs of the difference: [text, kernel] of a node, or null. */
  sides() {
    return (this.reading.sides ??= part("sides"));
  }

  /** A launch's time, shared by its kernels, which have the same code, in proportion to their bytes. */
  addTimes() {
    const launches = this.run?.kernels ?? [];
    const moved = (kernel) => kernel.bytes_read + kernel.bytes_written;
    const whole = new Map();
    for (const k of this.kernels) {
      const sum = whole.get(k.launch) ?? { bytes: 0, kernels: 0 };
      whole.set(k.launch, { bytes: sum.bytes + moved(k), kernels: sum.kernels + 1 });
    }
    this.kernels.forEach((kernel, i) => {
      const launch = launches[kernel.launch];
      const { bytes, kernels } = whole.get(kernel.launch);
      kernel.index = i;
      kernel.bytes = moved(kernel);
      kernel.seconds = launch ? launch.seconds * (bytes ? kernel.bytes / bytes : 1 / kernels) : 0;
      kernel.timed = launch;
      // The least time in which the machine could do it; null: another library does it, or nobody measured.
      kernel.roof = launch?.roof_seconds ? (launch.roof_seconds * kernel.seconds) / launch.seconds : null;
    });
    this.seconds = launches.reduce((sum, launch) => sum + launch.seconds, 0);
    this.bytes = this.run?.bytes_moved ?? this.kernels.reduce((sum, k) => sum + k.bytes, 0);
  }

  /** Of a kernel: that of its gradients, if it has any. */
  phase(kernel) {
    const found = new Set(kernel.nodes.map((i) => this.graph.phase(i)));
    return ["backward", "forward", "update"].find((phase) => found.has(phase)) ?? "";
  }
}

const NEAR = [0.1, 0.25]; // shares of a time within which others are like it: at least, at most

/** Groups with seconds, low and bytes, the dearest first. Those that the runs do not tell apart, because their times are nearly the same for
 * what they spread, stand by what they move, which is the same in each run. As explain() prints them. */
export function byTime(groups) {
  const found = [...groups].sort((a, b) => b.seconds - a.seconds);
  const ordered = [];
  while (found.length) {
    const { seconds, low } = found[0];
    const near = Math.min(Math.max(NEAR[0], (seconds - low) / seconds || 0), NEAR[1]);
    const apart = found.findIndex((g) => g.seconds < (1 - near) * seconds);
    ordered.push(...found.splice(0, apart < 0 ? found.length : apart).sort((a, b) => b.bytes - a.bytes));
  }
  return ordered;
}

/** Of a group or kernel: in which fifth of the roof it is, as the kind that has its colour. */
export function roofKind({ roof, timed }) {
  return roof === null || !(timed > 0) ? "unknown" : `roof${Math.max(0, Math.min(4, Math.floor((5 * roof) / timed)))}`;
}

export const ROOFS = [
  ["roof0", "less than 20% of the roof"],
  ["roof1", "20%"],
  ["roof2", "40%"],
  ["roof3", "60%"],
  ["roof4", "80% and more"],
  ["unknown", "none"],
];

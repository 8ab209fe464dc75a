// A graph as a tree: phases, modules, kernels, ops. The graph view and the treemap draw it; groups fold.
import { opName } from "./format.js";

const CROWD = 100; // more children than that are parted, so that no layout is of many boxes
const PART = 50;
const SCREEN = 28; // boxes that are an overview

let made = 0;

class Item {
  constructor(kind, name, parent) {
    Object.assign(this, { id: made++, kind, name, parent, children: [], open: false, edges: new Map() });
    Object.assign(this, { ops: 0, kernels: 0, seconds: 0, bytes: 0, roof: null, timed: 0, depth: parent ? parent.depth + 1 : 0 });
    parent?.children.push(this);
  }

  get path() {
    const names = [];
    for (let item = this; item.parent; item = item.parent) if (item.kind !== "phase") names.unshift(item.name);
    return names.join(".");
  }

  /** The item that is drawn for this one: itself, or the outermost group around it that is folded. */
  get shown() {
    let shown = this;
    for (let item = this.parent; item; item = item.parent) if (!item.open) shown = item;
    return shown;
  }

  reveal() {
    for (let item = this.parent; item; item = item.parent) item.open = true;
  }
}

function folder(parent, kind, name) {
  parent.folders ??= new Map();
  if (!parent.folders.has(name)) parent.folders.set(name, new Item(kind, name, parent));
  return parent.folders.get(name);
}

function place(root, phase, module) {
  let item = phase ? folder(root, "phase", phase) : root;
  for (const name of module ? module.split(".") : []) item = folder(item, "module", name);
  return item;
}

function addKernels(model, root, itemOf) {
  for (const kernel of model.kernels) {
    const item = new Item("kernel", kernel.name, place(root, model.phase(kernel), kernel.module));
    Object.assign(item, { kernel: kernel.index, seconds: kernel.seconds, bytes: kernel.bytes, kernels: 1 });
    item.color = kernel.kind;
    if (kernel.roof !== null) Object.assign(item, { roof: kernel.roof, timed: kernel.seconds });
    itemOf.kernels.push(item);
  }
}

/** A group of too many becomes a group of groups of neighbours, named by the lines they have in common. */
function part(group, nameOf) {
  const { children } = group;
  if (group.kind !== "kernel" && children.length > CROWD) {
    const size = Math.max(PART, Math.ceil(children.length / CROWD));
    group.children = [];
    for (let i = 0; i < children.length; i += size) {
      const members = children.slice(i, i + size);
      const item = new Item("part", nameOf(members, i), group);
      item.children = members;
      for (const member of members) member.parent = item;
    }
    part(group, nameOf);
  } else for (const child of children) part(child, nameOf);
}

function measure(item, depth = 0) {
  item.depth = depth;
  for (const child of item.children) {
    measure(child, depth + 1);
    item.ops += child.ops;
    if (item.kind === "kernel") continue;
    for (const key of ["kernels", "seconds", "bytes", "timed"]) item[key] += child[key];
    if (child.roof !== null) item.roof = (item.roof ?? 0) + child.roof;
  }
}

/** An edge of two ops is one of the two that lie side by side in the smallest group around both. */
function connect(from, to) {
  while (from.depth > to.depth) from = from.parent;
  while (to.depth > from.depth) to = to.parent;
  if (from === to) return;
  while (from.parent !== to.parent) [from, to] = [from.parent, to.parent];
  const key = from.id * 4194304 + to.id;
  const edges = from.parent.edges;
  if (edges.has(key)) edges.get(key).count++;
  else edges.set(key, { from, to, count: 1 });
}

/** {root, nodes, kernels}: the tree, its item of each node and kernel. */
export function hierarchy(model, stage) {
  const root = new Item("root", "all", null);
  const items = { root, nodes: [], kernels: [] };
  root.open = true;
  if (stage === model.graph && model.kernels.length) addKernels(model, root, items);
  stage.nodes.forEach((node, i) => {
    if (stage.isInput(i)) return;
    const phase = items.kernels.length ? "" : stage.phase(i);
    const parent = items.kernels[node.kernel] ?? place(root, phase, node.module ?? "");
    const item = new Item("op", opName(node.op), parent);
    Object.assign(item, { node: i, ops: 1, bytes: parent.kind === "kernel" ? 0 : node.bytes });
    items.nodes[i] = item;
  });
  part(root, (members, first) => {
    const lines = new Set(
      members.flatMap((m) => (m.kernel !== undefined ? model.kernels[m.kernel].lines : [stage.nodes[m.node]?.line])),
    );
    const range = `${first + 1} to ${first + members.length}`;
    return lines.size === 1 && [...lines][0] ? `${[...lines][0]}, ${range}` : range;
  });
  measure(root);
  stage.nodes.forEach((node, i) => {
    const to = items.nodes[i];
    if (to) for (const operand of new Set(node.operands)) if (items.nodes[operand]) connect(items.nodes[operand], to);
  });
  return items;
}

/** Opens what a depth shows: "kernel" (kernels are folded), "op" (nothing is), "module" (as many groups as fit on a screen). */
export function unfold(root, depth) {
  let shown = 0;
  const queue = [root];
  for (let item = queue.shift(); item; item = queue.shift()) {
    if (item.kind === "kernel") item.open = depth === "op";
    else item.open = depth !== "module" || item === root || shown + item.children.length <= SCREEN;
    if (item.open) shown += item.children.length;
    queue.push(...item.children);
  }
}

/** The tree in order, without what is folded. */
export function* outline(item) {
  for (const child of item.children) {
    yield child;
    if (child.open) yield* outline(child);
  }
}

// Places of boxes and edges. Each group is laid out by itself, from the inside out, by dagre: never more than some hundred boxes
// at once. Equal groups (the layers of a model) are laid out once.
import dagre from "@dagrejs/dagre";

export const BOX = { op: [136, 34], other: [176, 48] };
export const TITLE = 26;
const PADDING = 14;
const GAP = 22;
const known = new Map();

function components(children, edges) {
  const lead = children.map((_, i) => i);
  const find = (i) => {
    while (lead[i] !== i) i = lead[i] = lead[lead[i]];
    return i;
  };
  for (const [a, b] of edges) lead[find(a)] = find(b);
  const parts = new Map();
  children.forEach((_, i) => {
    const key = find(i);
    if (!parts.has(key)) parts.set(key, []);
    parts.get(key).push(i);
  });
  return [...parts.values()];
}

/** One connected part: {w, h, places: [x, y] of each box's corner, lines: [from, to, points]}. */
function layered(sizes, edges) {
  const signature = JSON.stringify([sizes, edges]);
  if (known.has(signature)) return known.get(signature);
  const graph = new dagre.graphlib.Graph();
  const ranker = sizes.length > 50 ? "longest-path" : "network-simplex";
  graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 30, ranker });
  graph.setDefaultEdgeLabel(() => ({}));
  sizes.forEach(([width, height], i) => graph.setNode(String(i), { width, height }));
  for (const [a, b] of edges) graph.setEdge(String(a), String(b));
  dagre.layout(graph);
  const places = sizes.map(([w, h], i) => {
    const { x, y } = graph.node(String(i));
    return [x - w / 2, y - h / 2];
  });
  const lines = edges.map(([a, b]) => [a, b, graph.edge(String(a), String(b)).points.map(({ x, y }) => [x, y])]);
  const { width, height } = graph.graph();
  const result = { w: width, h: height, places, lines };
  known.set(signature, result);
  return result;
}

/** Lays parts out in shelves: about as wide as high. */
function pack(parts) {
  const area = parts.reduce((sum, p) => sum + (p.w + GAP) * (p.h + GAP), 0);
  const widest = Math.max(...parts.map((p) => p.w), Math.sqrt(area * 1.5));
  let [x, y, shelf, w] = [0, 0, 0, 0];
  for (const p of parts) {
    if (x > 0 && x + p.w > widest) [x, y, shelf] = [0, y + shelf + GAP, 0];
    [p.x, p.y] = [x, y];
    x += p.w + GAP;
    shelf = Math.max(shelf, p.h);
    w = Math.max(w, x - GAP);
  }
  return { w, h: y + shelf };
}

function place(group) {
  const { children } = group;
  const number = new Map(children.map((child, i) => [child, i]));
  const edges = [...group.edges.values()].map((e) => [number.get(e.from), number.get(e.to)]);
  const parts = components(children, edges).map((members) => {
    const local = new Map(members.map((m, i) => [m, i]));
    const inner = edges.filter(([a]) => local.has(a)).map(([a, b]) => [local.get(a), local.get(b)]);
    const sizes = members.map((m) => [children[m].w, children[m].h]);
    const single = members.length === 1;
    const { w, h, places, lines } = single
      ? { w: sizes[0][0], h: sizes[0][1], places: [[0, 0]], lines: [] }
      : layered(sizes, inner);
    return { members, w, h, places, lines };
  });
  const size = pack(parts);
  const top = group.parent ? TITLE : 0;
  group.lines = [];
  for (const part of parts) {
    const [dx, dy] = [part.x + PADDING, part.y + PADDING + top];
    part.members.forEach((m, i) =>
      Object.assign(children[m], { x: part.places[i][0] + dx, y: part.places[i][1] + dy }),
    );
    for (const [a, b, points] of part.lines) {
      const [from, to] = [children[part.members[a]], children[part.members[b]]];
      group.lines.push({ from, to, points: points.map(([x, y]) => [x + dx, y + dy]) });
    }
  }
  group.w = Math.max(size.w + 2 * PADDING, 120);
  group.h = size.h + 2 * PADDING + top;
}

/** Sets x, y (in the group around it), w and h of every item that is shown, and `lines` of open groups. A step for each group. */
export function* arrange(item) {
  if (!item.children.length || !item.open) {
    [item.w, item.h] = item.kind === "op" ? BOX.op : BOX.other;
    return;
  }
  for (const child of item.children) yield* arrange(child);
  place(item);
  yield;
}

/** [x, y] of an item's corner in the whole drawing. */
export function corner(item) {
  let [x, y] = [0, 0];
  for (; item?.parent; item = item.parent) [x, y] = [x + item.x, y + item.y];
  return [x, y];
}

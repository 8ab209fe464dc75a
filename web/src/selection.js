// What is selected, in all tabs at once: a kernel, a node of a stage, a line of source, or a group of kernels.

export class Selection {
  #listeners = [];

  constructor(model) {
    this.model = model;
    this.clear(true);
  }

  subscribe(listener) {
    this.#listeners.push(listener);
  }

  /** `what`: {kernel}, {stage, node}, {stage, node, edge}, {source}, or {group}: {name, kernels, ops}. `from`: who selects. */
  select(what, from = null) {
    const { kernels } = this.model;
    Object.assign(this, { kernel: null, node: null, stage: null, source: null, group: null, edge: null }, what);
    if (this.node !== null) this.kernel = this.kernelOf(this.stage, this.node);
    else if (this.source !== null) this.kernel = this.kernelOfLine(this.source);
    if (this.kernel !== null && !kernels[this.kernel]) this.kernel = null;
    this.nodes = new Map();
    for (const listener of this.#listeners) listener(from);
  }

  clear(quiet = false) {
    Object.assign(this, {
      kernel: null,
      node: null,
      stage: null,
      source: null,
      group: null,
      edge: null,
      nodes: new Map(),
    });
    if (!quiet) for (const listener of this.#listeners) listener(null);
  }

  get empty() {
    return this.kernel === null && this.node === null && this.source === null && this.group === null;
  }

  /** The kernel that computes a node, or what became of it. */
  kernelOf(stage, node) {
    const graph = this.model.graph;
    const own = this.model.stages[stage].nodes[node];
    if (stage === graph.name) return own.kernel >= 0 ? own.kernel : null;
    const same = graph.byCall.get(own.call) ?? [];
    const found = same.map((i) => graph.nodes[i].kernel).find((k) => k >= 0);
    return found ?? null;
  }

  kernelOfLine(source) {
    const graph = this.model.graph;
    const found = (graph.bySource.get(source) ?? []).map((i) => graph.nodes[i].kernel).filter((k) => k >= 0);
    const seconds = (k) => this.model.kernels[k].seconds;
    return found.length ? found.reduce((a, b) => (seconds(b) > seconds(a) ? b : a)) : null;
  }

  /** Numbers of the nodes that the selection stands for in a stage: a Set. */
  in(stage) {
    if (!this.nodes.has(stage.name)) this.nodes.set(stage.name, this.#find(stage));
    return this.nodes.get(stage.name);
  }

  #find(stage) {
    const { graph, stages, kernels } = this.model;
    if (this.source !== null) return new Set(stage.bySource.get(this.source) ?? []);
    let origin = graph;
    let chosen = [];
    if (this.node !== null) [origin, chosen] = [stages[this.stage], [this.node]];
    else if (this.kernel !== null) chosen = kernels[this.kernel].nodes;
    else if (this.group !== null) chosen = this.group.kernels.flatMap((k) => kernels[k].nodes);
    if (origin === stage) return new Set(chosen);
    return new Set(chosen.flatMap((i) => stage.byCall.get(origin.nodes[i].call) ?? []));
  }

  /** Lines of source of what is selected. */
  sources() {
    if (this.source !== null) return new Set([this.source]);
    const stage = this.node !== null ? this.model.stages[this.stage] : this.model.graph;
    return new Set([...this.in(stage)].map((i) => stage.nodes[i].source).filter(Boolean));
  }
}

// The page: tabs, theme, keys. Everything it shows is read from the parts of this file (data.js).
import css from "./report.css";
import { CodeTab } from "./code.js";
import { CompareTab } from "./compare.js";
import { Model } from "./data.js";
import { DiffTab, SidesTab } from "./diff.js";
import { choice, h } from "./dom.js";
import { GraphTab } from "./graph.js";
import { Inspector } from "./inspector.js";
import { OverviewTab } from "./overview.js";
import { MemoryTab, RooflineTab } from "./plots.js";
import { Search } from "./search.js";
import { Selection } from "./selection.js";
import { UnfusedTab } from "./unfused.js";

const THEMES = ["auto", "light", "dark"];

class App {
  constructor(model) {
    this.model = model;
    this.selection = new Selection(model);
    this.search = new Search(this);
    this.inspector = new Inspector(this);
    this.tabs = new Map();
    const { report, kernels, run } = model;
    if (model.main) {
      this.#add("overview", "Overview", OverviewTab);
      this.#add("graph", "Graph", GraphTab);
      this.#add("code", "Code", CodeTab, true);
    }
    if (run?.kernels.length) this.#add("roofline", "Roofline", RooflineTab);
    if (report.edges.length) this.#add("unfused", "Unfused", UnfusedTab);
    if (kernels.length && report.values.length) this.#add("memory", "Memory", MemoryTab);
    if (report.comparison) this.#add("compare", "Compare", CompareTab, true);
    if (report.difference) this.#add("diff", "Diff", DiffTab, true);
    if (report.sides) this.#add("sides", "Side by side", SidesTab, true);
    this.#draw();
    this.selection.subscribe(() => this.#note());
    document.addEventListener("keydown", (event) => this.#key(event));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#repaint());
  }

  /** wide: without the panel of what is selected */
  #add(name, title, make, wide = false) {
    const panel = h("div", {
      class: `panel ${name}`,
      role: "tabpanel",
      id: `panel-${name}`,
      "aria-labelledby": `tab-${name}`,
      hidden: true,
    });
    const button = h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `tab-${name}`,
        "aria-controls": `panel-${name}`,
        "aria-selected": "false",
        tabindex: -1,
        onclick: () => this.open(name),
      },
      title,
    );
    this.tabs.set(name, { panel, button, make, wide, made: null });
  }

  #draw() {
    const { report, run, main } = this.model;
    this.theme = h("button", { type: "button", class: "tool", onclick: () => this.#turnTheme() });
    const tabs = h(
      "div",
      { class: "tabs", role: "tablist", "aria-label": "Views", onkeydown: (e) => this.#tabKey(e) },
      [...this.tabs.values()].map((t) => t.button),
    );
    this.main = h(
      "main",
      {},
      [...this.tabs.values()].map((t) => t.panel),
      this.inspector.element,
    );
    document.body.append(
      h("style", {}, css),
      h(
        "div",
        { class: "page" },
        h(
          "header",
          { class: "top" },
          h("h1", {}, report.title, h("small", {}, `torch_opaque ${main ? (run ? "explain" : "graph") : "diff"}`)),
          tabs,
          main ? this.search.element : h("div", { class: "search" }),
          this.theme,
        ),
        this.main,
      ),
    );
    this.#setTheme(stored() ?? "auto");
  }

  /** Opens a tab; of the code tab also one of its panes. */
  open(name, pane = null) {
    const tab = this.tabs.get(name);
    if (!tab) return;
    for (const [other, { panel, button }] of this.tabs) {
      panel.hidden = other !== name;
      button.setAttribute("aria-selected", String(other === name));
      button.tabIndex = other === name ? 0 : -1;
    }
    this.main.classList.toggle("wide", tab.wide);
    tab.made ??= new tab.make(tab.panel, this);
    tab.made.show?.();
    if (pane) tab.made.reveal?.(pane);
    this.current = name;
    this.#note();
  }

  /** A choice of what colours say, which is one for all tabs; none without times. `tell(byRoof)` is called when it changes. */
  colouring(tell) {
    if (!this.model.kernels.some((k) => k.roof !== null)) return null;
    this.colourings ??= [];
    const options = [
      ["kind", "Kind"],
      ["roof", "Share of the roof"],
    ];
    const element = choice("Colour", options, this.byRoof ? "roof" : "kind", (by) => {
      this.byRoof = by === "roof";
      for (const each of this.colourings) {
        each.element.press(by);
        each.tell(this.byRoof);
      }
    });
    this.colourings.push({ element, tell });
    if (this.byRoof) tell(true);
    return element;
  }

  /** What a search found is marked in the drawing. */
  found(matches) {
    this.tabs.get("graph").made?.find(matches);
  }

  /** The address says what is looked at, so that it can be passed on. */
  #note() {
    if (location.protocol === "about:") return; // a frame in a notebook has none
    const { kernel, node, stage } = this.selection;
    const place = node !== null ? `${stage}/${node}` : kernel !== null ? `kernel/${kernel}` : "";
    history.replaceState(null, "", `#${this.current}${place ? `/${place}` : ""}`);
  }

  start() {
    const [tab, what, number] = location.hash.slice(1).split("/");
    const i = Number(number);
    if (what === "kernel" && this.model.kernels[i]) this.selection.select({ kernel: i });
    else if (what && what === this.model.main && this.model.graph.nodes[i])
      this.selection.select({ stage: what, node: i });
    this.open(this.tabs.has(tab) ? tab : this.tabs.keys().next().value);
  }

  // ---- keys

  #key(event) {
    const typing = /^(INPUT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "range";
    if (event.key === "/" && !typing) {
      this.search.field.focus();
      this.search.field.select();
      event.preventDefault();
    } else if (event.key === "Escape" && !typing) this.selection.clear();
  }

  #tabKey(event) {
    const names = [...this.tabs.keys()];
    const last = names.length - 1;
    const at = names.indexOf(this.current);
    const next = { ArrowRight: at === last ? 0 : at + 1, ArrowLeft: at === 0 ? last : at - 1, Home: 0, End: last }[
      event.key
    ];
    if (next === undefined) return;
    this.open(names[next]);
    this.tabs.get(names[next]).button.focus();
    event.preventDefault();
  }

  // ---- theme

  #turnTheme() {
    const next = THEMES[(THEMES.indexOf(this.themeName) + 1) % THEMES.length];
    this.#setTheme(next);
    try {
      localStorage.setItem("opaque-theme", next);
    } catch {
      // A page from a file may have no storage: the theme is then that of this visit.
    }
  }

  #setTheme(name) {
    this.themeName = name;
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    this.theme.textContent = { auto: "\u25d0", light: "\u2600", dark: "\u263e" }[name];
    this.theme.title = `Theme: ${name}`;
    this.theme.setAttribute("aria-label", `Theme: ${name}`);
    this.#repaint();
  }

  #repaint() {
    this.tabs.get("graph")?.made?.repaint();
  }
}

function stored() {
  try {
    const name = localStorage.getItem("opaque-theme");
    return THEMES.includes(name) ? name : null;
  } catch {
    return null;
  }
}

async function begin() {
  try {
    const app = new App(await Model.read());
    app.start();
    globalThis.report = app;
    document.documentElement.dataset.ready = "true";
  } catch (error) {
    document.body.append(h("p", { role: "alert" }, `This report cannot be shown: ${error.message}`));
    throw error;
  }
}

begin();

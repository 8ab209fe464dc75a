// A table of any length: only the rows in sight are elements. Arrow keys move, Enter opens, headers sort. Lists of text and
// trees are tables too.
import { h } from "./dom.js";

const AROUND = 8; // rows made above and below those in sight
let tables = 0;

export class Table {
  /**
   * columns: [{title, about, width, text(row), sort(row), numeric}]: width as in grid-template-columns; about explains
   * the title; text gives a string or an element
   * onselect(row, index), onopen(row, index); rowClass(row), level(row): {level, expanded} makes a tree of it
   */
  constructor({
    label,
    columns,
    rows = [],
    onselect,
    onopen,
    rowHeight = 26,
    head = true,
    rowClass,
    tree,
    onfold,
    className = "",
  }) {
    Object.assign(this, { columns, onselect, onopen, rowHeight, rowClass, tree, onfold });
    this.prefix = `table${++tables}`;
    this.selected = -1;
    this.marked = new Set();
    this.template = columns.map((c) => c.width ?? "1fr").join(" ");
    this.head = head ? this.#makeHead() : null;
    this.space = h("div", { class: "space", role: "presentation" });
    this.element = h(
      "div",
      {
        class: `table ${className}`,
        role: tree ? "treegrid" : "grid",
        tabindex: 0,
        "aria-label": label,
        onscroll: () => this.#draw(),
        onkeydown: (event) => this.#key(event),
        onclick: (event) => this.#click(event),
        ondblclick: (event) => this.#open(event),
      },
      this.head,
      this.space,
    );
    new ResizeObserver(() => this.#draw(true)).observe(this.element);
    this.rows = rows;
  }

  get rows() {
    return this.list;
  }

  set rows(rows) {
    this.list = rows;
    if (this.sorting) this.#sort();
    this.selected = -1;
    this.refresh();
  }

  /** Draws again what is in sight: rows say something else now. */
  refresh() {
    this.element.setAttribute("aria-rowcount", this.list.length + (this.head ? 1 : 0));
    this.space.style.height = `${this.list.length * this.rowHeight}px`;
    this.#draw(true);
  }

  /** Shows a row as the selected one, without telling anyone. */
  show(index, scroll = true) {
    this.selected = index;
    if (scroll && index >= 0) this.scrollTo(index);
    this.#draw(true);
  }

  /** Rows that belong to what is selected elsewhere. */
  mark(indices, scroll = true) {
    this.marked = indices instanceof Set ? indices : new Set(indices);
    const first = this.marked.size ? Math.min(...this.marked) : -1;
    const [low, high] = this.#sight();
    const seen = [...this.marked].some((i) => i >= low && i < high);
    if (scroll && first >= 0 && !seen) this.scrollTo(first);
    this.#draw(true);
  }

  scrollTo(index) {
    const top = index * this.rowHeight;
    const height = this.element.clientHeight - (this.head?.offsetHeight ?? 0);
    if (top < this.element.scrollTop || top + this.rowHeight > this.element.scrollTop + height)
      this.element.scrollTop = Math.max(0, top - height / 3);
  }

  #sight() {
    const first = Math.floor(this.element.scrollTop / this.rowHeight);
    return [first, first + Math.ceil(this.element.clientHeight / this.rowHeight) + 1];
  }

  /** fresh: rows say something else now; else those that stay in sight stay as they are. */
  #draw(fresh = false) {
    if (!this.element.clientHeight) return;
    const [low, high] = this.#sight();
    const first = Math.max(0, low - AROUND);
    const end = Math.min(this.list.length, high + AROUND);
    if (!fresh && first === this.first && end === this.end) return;
    if (fresh || first >= this.end || end <= this.first) {
      this.space.replaceChildren(...this.#rowsOf(first, end));
    } else {
      for (let i = this.first; i < Math.min(first, this.end); i++) this.space.firstChild.remove();
      for (let i = end; i < this.end; i++) this.space.lastChild.remove();
      this.space.prepend(...this.#rowsOf(first, this.first));
      this.space.append(...this.#rowsOf(this.end, end));
    }
    [this.first, this.end] = [first, end];
    if (this.selected >= first && this.selected < end)
      this.element.setAttribute("aria-activedescendant", `${this.prefix}-${this.selected}`);
    else this.element.removeAttribute("aria-activedescendant");
  }

  #rowsOf(first, end) {
    const rows = [];
    for (let i = first; i < end; i++) rows.push(this.#row(i));
    return rows;
  }

  #row(i) {
    const row = this.list[i];
    const classes = ["row", this.rowClass?.(row)];
    if (i === this.selected) classes.push("selected");
    if (this.marked.has(i)) classes.push("marked");
    const place = this.tree?.(row);
    return h(
      "div",
      {
        class: classes.filter(Boolean).join(" "),
        id: `${this.prefix}-${i}`,
        role: "row",
        "aria-rowindex": i + (this.head ? 2 : 1),
        "aria-selected": String(i === this.selected),
        "aria-level": place?.level,
        "aria-expanded": place?.expanded === undefined ? undefined : String(place.expanded),
        "data-index": i,
        style: { top: `${i * this.rowHeight}px`, height: `${this.rowHeight}px`, gridTemplateColumns: this.template },
      },
      this.columns.map((c) => this.#cell(c, row)),
    );
  }

  /** What is cut off is said in whole when it is pointed at. */
  #cell(column, row) {
    const text = column.text(row);
    const title = typeof text === "string" && !column.numeric ? text : null;
    return h("div", { role: "gridcell", class: column.numeric ? "numeric" : null, title }, text);
  }

  #makeHead() {
    const cells = this.columns.map((column) =>
      h(
        "div",
        {
          role: "columnheader",
          class: column.numeric ? "numeric" : null,
          "aria-sort": column.sort ? "none" : null,
          title: column.about,
        },
        column.sort
          ? h("button", { type: "button", onclick: (e) => (e.stopPropagation(), this.sortBy(column)) }, column.title)
          : column.title,
      ),
    );
    return h(
      "div",
      { class: "head", role: "row", "aria-rowindex": 1, style: { gridTemplateColumns: this.template } },
      cells,
    );
  }

  /** Numbers fall first, words rise. */
  sortBy(column, falling = this.sorting?.column === column ? !this.sorting.falling : Boolean(column.numeric)) {
    this.sorting = { column, falling };
    const chosen = this.list[this.selected];
    this.#sort();
    this.selected = chosen ? this.list.indexOf(chosen) : -1;
    this.refresh();
  }

  #sort() {
    const { column, falling } = this.sorting;
    const sign = falling ? -1 : 1;
    this.list = [...this.list].sort((a, b) => {
      const [x, y] = [column.sort(a), column.sort(b)];
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    });
    this.columns.forEach((c, i) => {
      if (c.sort)
        this.head?.children[i].setAttribute("aria-sort", c !== column ? "none" : falling ? "descending" : "ascending");
    });
  }

  #choose(index) {
    if (index < 0 || index >= this.list.length) return;
    this.show(index);
    this.onselect?.(this.list[index], index);
  }

  #indexOf(event) {
    const row = event.target.closest?.("[data-index]");
    return row ? Number(row.dataset.index) : -1;
  }

  #click(event) {
    if (event.target.closest("button")) return;
    const index = this.#indexOf(event);
    if (index >= 0 && event.target.closest("[data-fold]")) this.onfold?.(this.list[index]);
    else if (index >= 0 && !String(getSelection())) this.#choose(index);
  }

  #open(event) {
    const index = this.#indexOf(event);
    if (index >= 0) this.onopen?.(this.list[index], index);
  }

  #key(event) {
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in steps) {
      this.#choose(Math.max(0, Math.min(this.list.length - 1, this.selected + steps[event.key])));
    } else if (event.key === "Enter" && this.selected >= 0) {
      this.onopen?.(this.list[this.selected], this.selected);
    } else if (this.onfold && this.selected >= 0 && (event.key === "ArrowRight" || event.key === "ArrowLeft")) {
      const row = this.list[this.selected];
      if (this.tree(row).expanded === (event.key === "ArrowLeft")) this.onfold(row);
    } else return;
    event.preventDefault();
  }
}

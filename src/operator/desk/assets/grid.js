// A list of any length of which only the rows in view are in the document. Rows are reused; the focus stays on the list
// itself, and `aria-activedescendant` names the row, so that no update takes the focus away.

import { forgetSizes } from "./chart.js";

/** The width of a column with a drawing, and the least one of a column with names, in pixels. */
const [DRAWN, LEAST] = [90, 70];
const pen = document.createElement("canvas").getContext("2d");

/** Rows above and below what is in view. */
const OVERSCAN = 6;

const element = (name, kind) => {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  return made;
};

export class Grid {
  rows = [];
  active = null;
  #slots = [];
  #order = new Map();
  /** The width of each column's widest text so far. It never shrinks, so that no update moves the columns to and fro. */
  #widths = [];
  #isWider = true;
  #font = "";

  /** `columns`: id, title, text(row), and optionally draw(canvas, row), value(row), isDown. */
  constructor(root, { columns, sort, onOpen, onSort, onActive, decorate }) {
    Object.assign(this, { root, columns, sort, onOpen, onSort, onActive, decorate });
    this.root.classList.add(...columns.map((column) => `has-${column.id}`));
    this.#head();
    this.body = element("div", "rows");
    this.body.setAttribute("role", "rowgroup");
    this.root.append(this.body);
    this.root.addEventListener("scroll", () => this.draw(), { passive: true });
    this.root.addEventListener("keydown", (event) => this.#key(event));
    this.#widths = columns.map(({ title, draw }) => (draw ? DRAWN : this.#measure(`${title} ↓`)));
    new ResizeObserver(() => {
      forgetSizes();
      this.#isWider = true;
      this.draw();
    }).observe(this.root);
  }

  /** Shows these rows, in this order. */
  show(rows) {
    this.rows = rows;
    this.#order = new Map(rows.map((row, index) => [row.key, index]));
    if (this.active !== null && !this.#order.has(this.active)) this.#activate(null);
    this.root.setAttribute("aria-rowcount", rows.length + 1);
    this.draw();
  }

  /** The row that keys act on. */
  row() {
    return this.active === null ? null : this.rows[this.#order.get(this.active)];
  }

  /** Makes the row `steps` further the active one, and shows it. */
  move(steps) {
    if (!this.rows.length) return;
    const from = this.#order.get(this.active);
    const to = from === undefined ? (steps > 0 ? 0 : this.rows.length - 1) : from + steps;
    this.select(this.rows[Math.max(0, Math.min(this.rows.length - 1, to))].key);
  }

  /** Makes a row the active one, and scrolls as far as it takes to see it. */
  select(key) {
    const index = this.#order.get(key);
    if (index === undefined) return;
    this.#activate(key);
    const { high, head } = this.#sizes();
    const [top, bottom] = [index * high, (index + 1) * high];
    const view = this.root.clientHeight - head;
    if (top < this.root.scrollTop) this.root.scrollTop = top;
    else if (bottom > this.root.scrollTop + view) this.root.scrollTop = bottom - view;
    this.draw();
  }

  sortBy(id) {
    const column = this.columns.find((one) => one.id === id);
    const isSame = this.sort.id === id;
    this.sort = { id, value: column.value, isDown: isSame ? !this.sort.isDown : Boolean(column.isDown) };
    this.#markSort();
    this.onSort();
  }

  draw() {
    const { high, head } = this.#sizes();
    if (!high || !this.root.clientHeight) return;
    const total = this.rows.length;
    this.body.style.height = `${total * high}px`;
    const first = Math.max(0, Math.floor(this.root.scrollTop / high) - OVERSCAN);
    const seen = Math.ceil((this.root.clientHeight - head) / high) + 2 * OVERSCAN;
    const last = Math.min(total, first + seen);
    while (this.#slots.length < last - first) this.#slots.push(this.#slot());
    const used = new Set();
    // Row n always takes slot n modulo their number: scrolling by one row changes one slot.
    for (let index = first; index < last; index += 1) {
      const slot = this.#slots[index % this.#slots.length];
      used.add(slot);
      this.#fill(slot, index, high);
    }
    for (const slot of this.#slots) if (!used.has(slot)) this.#hide(slot);
    if (this.#isWider) this.#layOut();
    this.#pointAtActive();
  }

  /** The width of a text in the list, the head of a sorted column included. */
  #measure(text) {
    if (!this.#font) {
      const { fontSize, fontFamily } = getComputedStyle(this.root);
      this.#font = `600 ${fontSize} ${fontFamily}`;
    }
    pen.font = this.#font;
    return Math.ceil(pen.measureText(text).width);
  }

  /** Makes the columns as wide as their texts; those of names are narrower where there is no room. */
  #layOut() {
    const seen = this.columns.map((column, number) => [column, this.#widths[number]])
      .filter(([{ header }]) => getComputedStyle(header).display !== "none");
    const tracks = seen.map(([{ hint }, wide]) => `minmax(${hint ? Math.min(wide, LEAST) : wide}px, ${wide}px)`);
    this.root.style.setProperty("--columns", tracks.join(" "));
    this.#isWider = false;
  }

  #sizes() {
    const high = parseFloat(getComputedStyle(this.root).getPropertyValue("--row"));
    return { high, head: this.headRow.offsetHeight };
  }

  #head() {
    const group = element("div", "head");
    group.setAttribute("role", "rowgroup");
    this.headRow = element("div", "row");
    this.headRow.setAttribute("role", "row");
    this.headRow.setAttribute("aria-rowindex", "1");
    for (const column of this.columns) {
      const cell = element("div", `cell ${column.id}`);
      cell.setAttribute("role", "columnheader");
      if (column.value) {
        const button = element("button");
        button.type = "button";
        button.textContent = column.title;
        button.addEventListener("click", () => this.sortBy(column.id));
        cell.append(button);
      } else {
        cell.textContent = column.title;
      }
      column.header = cell;
      this.headRow.append(cell);
    }
    group.append(this.headRow);
    this.root.setAttribute("aria-colcount", this.columns.length);
    this.root.append(group);
    this.#markSort();
  }

  #markSort() {
    for (const { id, header, value } of this.columns) {
      if (!value) continue;
      const direction = this.sort.isDown ? "descending" : "ascending";
      header.setAttribute("aria-sort", this.sort.id === id ? direction : "none");
    }
  }

  #slot() {
    const row = element("div", "row");
    row.setAttribute("role", "row");
    row.id = `${this.root.id}-${this.#slots.length}`;
    const slot = { row, cells: [], index: -1, item: null };
    for (const column of this.columns) {
      const cell = element("div", `cell ${column.id}`);
      cell.setAttribute("role", "gridcell");
      const content = column.draw ? element("canvas") : document.createTextNode("");
      cell.append(content);
      row.append(cell);
      slot.cells.push({ cell, content, text: "" });
    }
    row.addEventListener("click", () => {
      if (!slot.item) return;
      this.#activate(slot.item.key);
      this.draw();
      this.onOpen(slot.item);
    });
    this.body.append(row);
    return slot;
  }

  #fill(slot, index, high) {
    const item = this.rows[index];
    const isMoved = slot.index !== index || slot.high !== high;
    if (isMoved) {
      slot.row.style.transform = `translateY(${index * high}px)`;
      slot.row.setAttribute("aria-rowindex", index + 2);
      slot.row.classList.toggle("odd", index % 2 === 1);
      Object.assign(slot, { index, high });
    }
    slot.item = item;
    if (slot.row.hidden) slot.row.hidden = false;
    const isActive = item.key === this.active;
    if (slot.isActive !== isActive) slot.row.setAttribute("aria-selected", isActive);
    slot.isActive = isActive;
    this.decorate?.(slot.row, item);
    this.columns.forEach((column, number) => {
      const own = slot.cells[number];
      if (column.draw) {
        column.draw(own.content, item);
        return;
      }
      const text = column.text(item);
      if (own.text === text) return;
      own.content.data = own.text = text;
      const wide = this.#measure(text);
      if (wide > this.#widths[number]) [this.#widths[number], this.#isWider] = [wide, true];
      if (column.hint) own.cell.title = text;
    });
  }

  #hide(slot) {
    if (slot.row.hidden) return;
    slot.row.hidden = true;
    Object.assign(slot, { index: -1, item: null });
  }

  #activate(key) {
    if (this.active === key) return;
    this.active = key;
    this.onActive?.(this.row());
  }

  #pointAtActive() {
    const slot = this.#slots.find((one) => one.isActive && !one.row.hidden && one.item?.key === this.active);
    if (slot) this.root.setAttribute("aria-activedescendant", slot.row.id);
    else this.root.removeAttribute("aria-activedescendant");
  }

  #key(event) {
    if (event.target !== this.root) return;
    const page = Math.max(1, Math.floor(this.root.clientHeight / this.#sizes().high) - 2);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity }[event.key];
    if (steps !== undefined) {
      const isEdge = !Number.isFinite(steps);
      if (isEdge && this.rows.length) this.select(this.rows[steps < 0 ? 0 : this.rows.length - 1].key);
      else this.move(steps);
    } else if (event.key === "Enter" && this.row()) {
      this.onOpen(this.row());
    } else {
      return;
    }
    event.preventDefault();
  }
}

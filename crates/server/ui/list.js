// A long list of which only the visible rows are elements. Rows have one height; the keyboard moves from row to row.

import { h } from './dom.js';

/** Rows beyond the visible ones, above and below. */
const SPARE = 12;
/** Never more row elements than this. */
const ROWS_MAX = 160;

export class List {
  /** `draw(row)` makes the cells of a row, the first with a link. `id(row)` names it. */
  constructor(label, heads, { draw, id }) {
    this.draw = draw;
    this.id = id;
    this.rows = [];
    this.drawn = new Map();
    this.body = h('div', { class: 'rows', role: 'rowgroup' });
    const head = h('div', { class: 'row head', role: 'row' }, heads.map(([text, kind]) =>
      h('div', { role: 'columnheader', class: kind }, text)));
    this.scroller = h('div', { class: 'scroller' }, this.body);
    this.node = h('div', { class: 'list', role: 'table', 'aria-label': label }, h('div', { role: 'rowgroup' }, head), this.scroller);
    this.scroller.addEventListener('scroll', () => this.update(), { passive: true });
    this.node.addEventListener('keydown', (event) => this.#key(event));
    this.resized = new ResizeObserver(() => { this.height = 0; this.update(); });
    this.resized.observe(this.scroller);
  }

  close() { this.resized.disconnect(); }

  set(rows) {
    this.rows = rows;
    this.drawn.forEach((node) => { node.stale = true; });
    this.update();
  }

  /** Draws one row again, if it is visible. */
  changed(row) {
    const node = this.drawn.get(this.id(row));
    if (node) { node.stale = true; this.update(); }
  }

  update() {
    this.height ||= parseFloat(getComputedStyle(this.node).getPropertyValue('--row')) || 40;
    const { height, rows } = this;
    this.node.setAttribute('aria-rowcount', rows.length + 1);
    this.body.style.height = `${rows.length * height}px`;
    const first = Math.max(0, Math.floor(this.scroller.scrollTop / height) - SPARE);
    const visible = Math.min(ROWS_MAX, Math.ceil(this.scroller.clientHeight / height) + 2 * SPARE);
    const window = rows.slice(first, first + visible);
    const wanted = new Set(window.map(this.id));
    for (const [id, node] of this.drawn) if (!wanted.has(id)) { node.remove(); this.drawn.delete(id); }
    window.forEach((row, at) => this.#place(row, first + at));
  }

  #place(row, index) {
    const id = this.id(row);
    let node = this.drawn.get(id);
    if (!node) {
      node = h('div', { class: 'row', role: 'row' });
      node.stale = true;
      this.drawn.set(id, node);
      this.body.append(node);
    }
    if (node.stale) {
      const focused = node.contains(document.activeElement);
      node.replaceChildren(...this.draw(row));
      node.stale = false;
      if (focused) node.querySelector('a')?.focus({ preventScroll: true });
    }
    node.index = index;
    node.setAttribute('aria-rowindex', index + 2);
    node.style.transform = `translateY(${index * this.height}px)`;
  }

  #key(event) {
    const row = event.target.closest('.row');
    if (row?.index === undefined) return;
    const page = Math.max(1, Math.floor(this.scroller.clientHeight / this.height) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(this.rows.length - 1, row.index + moves[event.key]));
    const top = index * this.height;
    if (top < this.scroller.scrollTop) this.scroller.scrollTop = top;
    const bottom = top + this.height - this.scroller.clientHeight;
    if (bottom > this.scroller.scrollTop) this.scroller.scrollTop = bottom;
    this.update();
    this.drawn.get(this.id(this.rows[index]))?.querySelector('a')?.focus({ preventScroll: true });
  }
}

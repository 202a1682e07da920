// Elements, text and times. Text of others becomes a text node and nothing else; characters that are invisible or that
// change the direction of what follows are shown by their code.

const SVG = 'http://www.w3.org/2000/svg';

function fill(node, props, children) {
  for (const [key, value] of Object.entries(props ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (typeof value === 'function') node.addEventListener(key, value);
    else if (key === 'value') node.value = value;
    else node.setAttribute(key, value === true ? '' : value);
  }
  node.append(...children.flat(3).filter((child) => child !== undefined && child !== null && child !== false));
  return node;
}

export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);
export const s = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffc]|[\u{e0000}-\u{e0fff}]/u;
const code = (c) => `\\u{${c.codePointAt(0).toString(16)}}`;

/** The text with every invisible character as its code: for titles and labels. */
export const visible = (text) => [...String(text)].map((c) => (HIDDEN.test(c) ? code(c) : c)).join('');

/** A name that others chose, isolated from the direction of the text around it. */
export function name(text, props) {
  const node = h('bdi', { class: 'name', title: visible(text), ...props });
  let plain = '';
  for (const c of String(text)) {
    if (!HIDDEN.test(c)) { plain += c; continue; }
    node.append(plain, h('span', { class: 'code' }, code(c)));
    plain = '';
  }
  node.append(plain);
  return node;
}

let offset = 0;
/** Learns the difference between the server's clock and this one. */
export const setClock = (serverMs) => { offset = serverMs - Date.now(); };
export const now = () => Date.now() + offset;

/** A span of milliseconds in two units at most. */
export function span(ms) {
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (ms < 950) return `${Math.max(0, Math.round(ms))} ms`;
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${String(seconds % 60).padStart(2, '0')} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${String(Math.floor((seconds % 3600) / 60)).padStart(2, '0')} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

const pad = (n, width = 2) => String(n).padStart(width, '0');
export function clock(ms, fraction) {
  const at = new Date(ms);
  const text = `${pad(at.getHours())}:${pad(at.getMinutes())}:${pad(at.getSeconds())}`;
  return fraction ? `${text}.${pad(at.getMilliseconds(), 3)}` : text;
}

/** A time with the day as its title. A ticking one is shown as a span from now, and kept up to date. */
export function time(ms, ticking) {
  const node = h('time', { datetime: new Date(ms).toISOString(), title: new Date(ms).toLocaleString(), class: 'num' });
  if (ticking) { node.dataset.at = ms; node.dataset.ticking = ticking; tickOne(node); } else node.append(clock(ms));
  return node;
}

function tickOne(node) {
  const at = Number(node.dataset.at);
  const late = node.dataset.ticking === 'until' && at <= now();
  const text = late ? 'over' : node.dataset.ticking === 'for' ? span(now() - at) : node.dataset.ticking === 'until' ? `in ${span(at - now())}` : `${span(now() - at)} ago`;
  if (node.textContent !== text) node.textContent = text;
}
export const tick = () => document.querySelectorAll('time[data-ticking]').forEach(tickOne);

export const number = (value) => (typeof value === 'number' ? value.toLocaleString('en-US') : String(value));

/** Replaces the children of a node, and leaves the focus on the element with the same `data-id`. */
export function render(node, ...children) {
  const focused = node.contains(document.activeElement) ? document.activeElement.dataset.id : undefined;
  node.replaceChildren(...children.flat(3).filter(Boolean));
  if (focused) node.querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
}

export const link = (href, child, props) => h('a', { href, ...props }, child);
export const empty = (text, hint) => h('div', { class: 'empty' }, h('p', {}, text), hint && h('p', { class: 'hint' }, hint));
export const failure = (error, retry) => h('div', { class: 'failure', role: 'alert' },
  h('p', {}, visible(error.message)), error.code && h('p', { class: 'hint' }, `Error code: ${error.code}`),
  retry && h('button', { type: 'button', click: retry }, 'Try again'));
export const badge = (text, kind) => h('span', { class: `badge ${kind ?? text}` }, text);

export const section = (title, ...children) => h('section', { class: 'card' }, h('h2', {}, title), ...children);

/** A table of at most 200 rows; on a narrow screen each row becomes a card with labels. */
export function table(caption, heads, rows) {
  const head = heads.map((text) => h('th', { scope: 'col', class: text.startsWith('#') ? 'num' : undefined }, text.replace('#', '')));
  const body = rows.slice(0, 200).map((cells) => h('tr', {}, cells.map((cell, at) =>
    h('td', { 'data-label': heads[at].replace('#', ''), class: heads[at].startsWith('#') ? 'num' : undefined }, cell ?? h('span', { class: 'none' }, '–')))));
  return h('table', {}, h('caption', { class: 'hidden' }, caption), h('thead', {}, h('tr', {}, head)), h('tbody', {}, body));
}

// A small plot of the last values of a measure.

import { s } from './dom.js';

const WIDTH = 120, HEIGHT = 32;

/** A line over a filled area, from 0 to the largest value. */
export function spark(values, label) {
  const top = Math.max(1, ...values);
  const x = (at) => (values.length < 2 ? WIDTH : (at / (values.length - 1)) * WIDTH);
  const y = (value) => HEIGHT - 2 - (value / top) * (HEIGHT - 4);
  const points = values.map((value, at) => `${x(at).toFixed(1)},${y(value).toFixed(1)}`).join(' ');
  return s('svg', { class: 'spark', viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    values.length > 1 && s('polygon', { class: 'area', points: `0,${HEIGHT} ${points} ${WIDTH},${HEIGHT}` }),
    values.length > 1 && s('polyline', { class: 'line', points }));
}

/** The samples of a text in the OpenMetrics format: name with labels, and value. */
export function samples(text) {
  const found = new Map();
  for (const line of text.split('\n')) {
    if (!line || line[0] === '#') continue;
    const at = line.lastIndexOf(' ');
    found.set(line.slice(0, at), Number(line.slice(at + 1)));
  }
  return found;
}

/** The sum over all labels of a metric. */
export function sum(found, metric) {
  let total = 0;
  for (const [key, value] of found) if (key === metric || key.startsWith(`${metric}{`)) total += value;
  return total;
}

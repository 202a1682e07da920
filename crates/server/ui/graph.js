// A graph of who waits for whom: waiters on the left, those who wait for nobody on the right.

import { h, s, visible } from './dom.js';
import { partyOf, resourceText } from './overview.js';

const NODES_MAX = 40, WIDTH = 180, HEIGHT = 34, GAP_X = 160, GAP_Y = 14;

/** Parties with their depth, and edges between them. */
export function layers(waiting) {
  const nodes = new Map(), edges = new Map();
  const node = (id) => { if (!nodes.has(id) && nodes.size < NODES_MAX) nodes.set(id, { id, waits: 0, blocks: 0 }); return nodes.get(id); };
  for (const waiter of waiting) for (const lease of waiter.blocked_by) {
    const from = node(partyOf(waiter)), to = node(partyOf(lease));
    if (!from || !to) continue;
    from.waits += 1; to.blocks += 1;
    const id = `${from.id}\n${to.id}`;
    const edge = edges.get(id) ?? { from, to, resources: new Set() };
    waiter.resources.forEach((resource) => edge.resources.add(resourceText(resource)));
    edges.set(id, edge);
  }
  const depth = (one, path) => {
    if (one.depth !== undefined || path.has(one)) return one.depth ?? 0;
    path.add(one);
    const behind = [...edges.values()].filter((edge) => edge.from === one && edge.to !== one);
    one.depth = behind.length ? 1 + Math.max(...behind.map((edge) => depth(edge.to, path))) : 0;
    return one.depth;
  };
  nodes.forEach((one) => depth(one, new Set()));
  return { nodes: [...nodes.values()], edges: [...edges.values()] };
}

export function graph(waiting) {
  const { nodes, edges } = layers(waiting);
  const columns = Math.max(...nodes.map((one) => one.depth)) + 1;
  const filled = Array(columns).fill(0);
  nodes.sort((a, b) => b.blocks - a.blocks || b.waits - a.waits);
  for (const one of nodes) {
    one.x = (columns - 1 - one.depth) * (WIDTH + GAP_X) + 4;
    one.y = filled[one.depth]++ * (HEIGHT + GAP_Y) + 4;
  }
  const width = columns * (WIDTH + GAP_X) - GAP_X + 8, height = Math.max(...filled) * (HEIGHT + GAP_Y) - GAP_Y + 8;
  const most = Math.max(...nodes.map((one) => one.blocks));
  const picture = s('svg', { class: 'graph', viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': `${edges.length} waits between ${nodes.length} agents; the tables below list them` },
    s('defs', {}, s('marker', { id: 'arrow', viewBox: '0 0 8 8', refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: 'auto' }, s('path', { class: 'head', d: 'M0 0l8 4-8 4z' }))),
    edges.map(edgeOf), nodes.map((one) => nodeOf(one, one.blocks === most)));
  return h('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Graph of waits' }, picture);
}

function edgeOf({ from, to, resources }) {
  const x1 = from.x + WIDTH, y1 = from.y + HEIGHT / 2, x2 = to.x - 2, y2 = to.y + HEIGHT / 2;
  const bend = Math.max(30, Math.abs(x2 - x1) / 2);
  return s('path', { class: 'edge', d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`, 'marker-end': 'url(#arrow)' },
    s('title', {}, visible(`${from.id} waits for ${to.id}: ${[...resources].slice(0, 5).join(', ')}`)));
}

function nodeOf(one, most) {
  const text = visible(one.id), shown = text.length > 21 ? `${text.slice(0, 20)}…` : text;
  return s('g', { class: `node${most ? ' most' : ''}` }, s('title', {}, `${text}: blocks ${one.blocks}, waits ${one.waits}`),
    s('rect', { x: one.x, y: one.y, width: WIDTH, height: HEIGHT, rx: 5 }),
    s('text', { x: one.x + 10, y: one.y + 21 }, shown),
    one.blocks > 0 && s('text', { class: 'count', x: one.x + WIDTH - 10, y: one.y + 21, 'text-anchor': 'end' }, String(one.blocks)));
}

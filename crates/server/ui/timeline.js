// The last hour of a resource: who held it, who waited beneath, and what happened when.

import { clock, empty, h, s, span, visible } from './dom.js';
import { partyOf } from './overview.js';

const WIDTH = 1000, LEFT = 8, RIGHT = 992, TOP = 26, LANE = 30, WAIT = 16, LANES_MAX = 12;
const ENDS = ['released', 'expired', 'revoked'];
const LIMITS = { start: 'the server started', size: 'older entries were dropped', age: '' };

/** The intervals in which a lease had authority, and in which it only blocked; the marks; and the waits. */
export function intervals(history, state, waiting) {
  const bars = new Map(), marks = [], waits = [], open = new Map();
  for (const lease of state.leases) {
    bars.set(lease.public_id, { who: partyOf(lease), token: lease.fencing_token, epoch: lease.lease_epoch, from: lease.acquired_at_unix_ms, to: null });
  }
  for (const entry of history.entries) {
    const { event, at_unix_ms: at, public_id: id } = entry;
    const who = partyOf(entry);
    if (event === 'contention') {
      if (entry.how === 'waits') { const wait = { who, from: at, to: null, how: 'waits' }; waits.push(wait); open.set(who, wait); }
      else if (entry.how === 'timed_out' && open.has(who)) { Object.assign(open.get(who), { to: at, how: 'timed out' }); open.delete(who); }
      else marks.push({ at, kind: entry.how, text: `${who} ${entry.how.replace('_', ' ')}` });
      continue;
    }
    const bar = bars.get(id) ?? { who, token: entry.fencing_token, epoch: entry.lease_epoch, from: history.since_unix_ms, to: null };
    if (event === 'granted' && entry.how !== 'rebound') Object.assign(bar, { from: at });
    if (event === 'granted') {
      bar.token = entry.fencing_token;
      if (open.has(who)) { Object.assign(open.get(who), { to: at, how: 'granted' }); open.delete(who); }
    }
    if (ENDS.includes(event)) { bar.authority = at; bar.end = event; if (event === 'released' || (event === 'expired' && entry.how !== 'held')) bar.to = at; }
    if (event === 'reclaimed') bar.to = at;
    if (event === 'granted' && entry.how === 'rebound') { bar.authority = null; bar.end = null; }
    bars.set(id, bar);
    if (event !== 'granted' && event !== 'released') marks.push({ at, kind: event, text: `${event}${entry.version ? ` version ${entry.version}` : ''} by ${who}, token ${entry.fencing_token}` });
    if (event === 'granted') marks.push({ at, kind: 'granted', text: `granted to ${who}, token ${entry.fencing_token}, epoch ${entry.lease_epoch}`, token: entry.fencing_token });
  }
  const still = new Set(waiting.map(partyOf));
  for (const wait of waits) if (!wait.to && !still.has(wait.who)) { wait.to = wait.from; wait.how = 'left'; }
  for (const row of waiting) if (!open.has(partyOf(row))) waits.push({ who: partyOf(row), from: history.now_unix_ms - row.age_ms, to: null, how: 'waits' });
  return { bars: [...bars.values()].sort((a, b) => a.from - b.from), marks, waits };
}

/** Lanes in which intervals do not overlap. */
function lanes(rows, end) {
  const ends = [];
  return rows.map((row) => {
    let lane = ends.findIndex((last) => last <= row.from);
    if (lane < 0) lane = ends.length;
    ends[lane] = row.to ?? end;
    return lane;
  });
}

const colour = (who) => [...who].reduce((sum, c) => (sum * 31 + c.codePointAt(0)) % 8, 7);

export function timeline(history, state, waiting, shown) {
  const end = history.now_unix_ms + Math.max(0, performance.now() - (history.read ??= performance.now()));
  const begin = end - shown;
  const { bars, marks, waits } = intervals(history, state, waiting);
  const inside = (row) => (row.to ?? end) >= begin && row.from <= end;
  const held = bars.filter(inside), queued = waits.filter(inside);
  const x = (at) => LEFT + ((Math.max(begin, Math.min(end, at)) - begin) / shown) * (RIGHT - LEFT);
  const heldLanes = lanes(held, end), waitLanes = lanes(queued, end);
  const heldRows = Math.max(1, ...heldLanes.map((lane) => lane + 1));
  const waitTop = TOP + heldRows * LANE + 22;
  const waitRows = Math.min(LANES_MAX, Math.max(0, ...waitLanes.map((lane) => lane + 1)));
  const height = waitTop + Math.max(1, waitRows) * WAIT + 8;
  const title = (text) => s('title', {}, visible(text));
  const label = `Timeline of the last ${span(shown)}: ${held.length} leases, ${queued.length} waits`;
  const picture = s('svg', { class: 'timeline', viewBox: `0 0 ${WIDTH} ${height}`, role: 'img', 'aria-label': label },
    axis(begin, end, x, height),
    history.since_unix_ms > begin && s('g', {}, s('rect', { class: 'unknown', x: LEFT, y: TOP - 4, width: x(history.since_unix_ms) - LEFT, height: height - TOP }, title(`No history before ${clock(history.since_unix_ms)}: ${LIMITS[history.limited_by]}`))),
    held.map((bar, at) => holderBar(bar, heldLanes[at], x, end, title)),
    marks.filter((mark) => mark.at >= begin).map((mark) => markOf(mark, x(mark.at), waitTop, title)),
    s('text', { class: 'lane', x: LEFT, y: waitTop - 7 }, queued.length ? 'Waiters' : 'No waiters'),
    queued.map((wait, at) => waitLanes[at] < LANES_MAX && waitBar(wait, waitTop + waitLanes[at] * WAIT, x, end, title)));
  const note = history.since_unix_ms > end - 3_500_000 && h('p', { class: 'hint' }, `The history begins at ${clock(history.since_unix_ms)}: ${LIMITS[history.limited_by]}.`);
  if (!held.length && !queued.length && !marks.length) return [picture, empty('Nothing happened in this time'), note];
  return [h('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Timeline' }, picture), legend(), note];
}

function axis(begin, end, x, height) {
  const step = [10_000, 60_000, 180_000, 600_000].find((one) => (end - begin) / one <= 7) ?? 600_000;
  const parts = [];
  for (let at = Math.ceil(begin / step) * step; at <= end; at += step) {
    parts.push(s('line', { class: 'tick', x1: x(at), x2: x(at), y1: 16, y2: height }), s('text', { class: 'tick', x: x(at), y: 11, 'text-anchor': x(at) > RIGHT - 30 ? 'end' : 'middle' }, clock(at).slice(0, step < 60_000 ? 8 : 5)));
  }
  return s('g', {}, parts);
}

function holderBar(bar, lane, x, end, title) {
  const y = TOP + lane * LANE, from = x(bar.from), to = x(bar.to ?? end);
  const authority = x(Math.min(bar.authority ?? end, bar.to ?? end));
  const kind = `bar c${colour(bar.who)}`;
  const width = Math.max(2, authority - from);
  const text = [`${bar.who} · ${bar.token}`, bar.who].find((one) => width > one.length * 7 + 8);
  return s('g', {}, title(`${bar.who}: token ${bar.token}, ${clock(bar.from)} to ${bar.to ? clock(bar.to) : 'now'}${bar.end ? `, ${bar.end}` : ''}`),
    s('rect', { class: kind, x: from, y, width, height: LANE - 8, rx: 3 }),
    to - authority > 1 && s('rect', { class: 'bar held', x: authority, y, width: to - authority, height: LANE - 8 }),
    text && s('text', { class: 'bar', x: from + 6, y: y + 15 }, visible(text)));
}

function markOf(mark, x, bottom, title) {
  const y = bottom - 20;
  const shapes = {
    committed: () => s('circle', { cx: x, cy: y, r: 3.5 }), expired: () => s('path', { d: `M${x - 4} ${y - 4}h8l-8 8h8z` }),
    revoked: () => s('path', { d: `M${x - 4} ${y - 4}l8 8m0-8l-8 8` }), reclaimed: () => s('path', { d: `M${x - 4} ${y}h8` }),
    granted: () => s('path', { d: `M${x} ${y - 4}v8` }),
  };
  return s('g', { class: `mark ${mark.kind}` }, title(`${clock(mark.at, true)} ${mark.text}`), (shapes[mark.kind] ?? (() => s('path', { d: `M${x} ${y - 4}l4 8h-8z` })))());
}

function waitBar(wait, y, x, end, title) {
  const from = x(wait.from), to = x(wait.to ?? end);
  const width = Math.max(3, to - from);
  return s('g', {}, title(`${wait.who} ${wait.how}, ${span((wait.to ?? end) - wait.from)}`),
    s('rect', { class: `wait c${colour(wait.who)}`, x: from, y, width, height: WAIT - 5, rx: 2 }),
    width > wait.who.length * 6 + 8 && s('text', { class: 'wait', x: from + 4, y: y + 9 }, visible(wait.who)));
}

const legend = () => h('ul', { class: 'legend' }, [['granted', 'granted'], ['committed', 'committed'], ['expired', 'expired'], ['revoked', 'revoked'], ['died', 'refused or died']].map(([kind, text]) =>
  h('li', {}, s('svg', { viewBox: '0 0 12 12', width: 12, height: 12, 'aria-hidden': 'true' }, markOf({ kind, at: 0, text: '' }, 6, 26, () => null)), text)));

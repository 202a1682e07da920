// Keys: everything that is held, waited for or has a document, by prefix.

import { get, list } from './api.js';
import { toKey } from './app.js';
import { badge, empty, failure, h, link, name, number, render, time } from './dom.js';
import { debounce } from './live.js';
import { List } from './list.js';
import { partyOf, resourceText } from './overview.js';

/** The most leases, and the most documents, that are read. */
const ROWS_MAX = 20_000;
const NAMESPACES_MAX = 50;
const ENDS = ['released', 'expired', 'reclaimed'];

export function open(root, params, context) {
  const rows = new Map();
  let loaded = false, more = false, problem = null;
  const view = { prefix: params.prefix ?? '', held: params.held === '1' };
  const count = h('p', { class: 'hint', role: 'status' });
  const place = h('div', { class: 'place' });
  const search = h('input', { type: 'search', id: 'search', placeholder: 'Prefix of the name', value: view.prefix, autocomplete: 'off', spellcheck: 'false',
    input: () => { view.prefix = search.value; context.replace({ prefix: view.prefix }); draw(); },
    keydown: (event) => { if (event.key === 'Enter') openExact(); } });
  const held = h('input', { type: 'checkbox', id: 'held', change: () => { view.held = held.checked; context.replace({ held: view.held ? '1' : '' }); draw(); } });
  held.checked = view.held;
  const rowList = new List('Keys', [['Key'], ['Holder'], ['Since', 'num'], ['Until', 'num'], ['Waiters', 'num'], ['Version', 'num']], { draw: cells, id: (row) => row.id });
  root.append(h('h1', {}, 'Keys'), h('div', { class: 'tools' },
    h('label', { for: 'search' }, 'Search'), search, h('label', { class: 'check' }, held, ' only held'), count), place);

  const row = (namespace, resource) => {
    const id = `${namespace}\n${resource.kind}:${resource.name}`;
    if (!rows.has(id)) rows.set(id, { id, namespace, resource: { kind: resource.kind, name: resource.name }, text: resourceText(resource), waiters: 0 });
    return rows.get(id);
  };
  const hold = (lease) => lease.resources.map((resource) => Object.assign(row(lease.namespace, resource), { lease }));
  const free = (one) => { one.lease = null; if (!one.version && !one.waiters) rows.delete(one.id); };

  function draw() {
    if (problem) return render(place, failure(problem, load));
    if (!loaded) return render(place, empty('Reading keys'));
    const wanted = (one) => (!view.held || one.lease) && (one.text.startsWith(view.prefix) || one.resource.name.startsWith(view.prefix));
    const found = [...rows.values()].filter(wanted).sort((a, b) => (a.text < b.text ? -1 : a.text > b.text ? 1 : a.namespace < b.namespace ? -1 : 1));
    count.textContent = `${number(found.length)} of ${number(rows.size)} keys${more ? `; only the first ${number(ROWS_MAX)} leases and documents are read` : ''}`;
    if (!found.length) return render(place, empty(rows.size ? 'No key matches' : 'No keys yet', rows.size ? 'Enter opens the key of exactly this name.' : 'A key appears here when it is acquired or has a document.'));
    if (!rowList.node.isConnected) render(place, rowList.node);
    rowList.set(found);
  }

  function openExact() {
    if (!view.prefix) return;
    const match = [...rows.values()].find((one) => one.text === view.prefix);
    location.hash = toKey(match?.namespace ?? (context.ns || 'default'), match?.resource ?? { kind: 'KEY', name: view.prefix });
  }

  async function waiters() {
    const { waiting } = await get('contention', { namespace: context.ns });
    rows.forEach((one) => { one.waiters = 0; });
    for (const waiter of waiting) for (const resource of waiter.resources) row(waiter.namespace, resource).waiters += 1;
  }

  async function load() {
    problem = null;
    try {
      const leases = await list('leases', 'leases', { namespace: context.ns }, ROWS_MAX);
      const namespaces = context.ns ? [context.ns] : (await list('namespaces', 'namespaces', {}, NAMESPACES_MAX)).rows;
      const documents = [];
      for (const namespace of namespaces) {
        if (documents.length >= ROWS_MAX || !context.me.can(namespace, 'r')) continue;
        const found = await list('keys', 'keys', { namespace }, ROWS_MAX - documents.length);
        more ||= found.more;
        documents.push(...found.rows.map((one) => ({ namespace, ...one })));
      }
      rows.clear();
      more ||= leases.more;
      leases.rows.forEach(hold);
      for (const one of documents) row(one.namespace, { kind: 'KEY', name: one.key }).version = one.version;
      await waiters();
      loaded = true;
    } catch (error) { problem = error; }
    draw();
  }

  const redraw = debounce(30, draw);
  const reload = debounce(1000, load);
  const recount = debounce(150, async () => { await waiters(); draw(); });
  const fetching = new Set();
  async function fetchLease(id) {
    if (fetching.has(id)) return;
    fetching.add(id);
    try { hold(await get('lease', { id })); } catch { reload(); } finally { fetching.delete(id); redraw(); }
  }
  const stop = context.live.listen((event) => {
    if (!event) return reload();
    if (!loaded || (context.ns && event.namespace !== context.ns)) return;
    if (event.event === 'contention') return recount();
    const mine = event.resources.map((resource) => row(event.namespace, resource));
    if (event.event === 'committed') mine.forEach((one) => { one.version = event.how === 'removed' ? 0 : event.version; });
    else if (ENDS.includes(event.event) && event.how !== 'held') mine.filter((one) => one.lease?.public_id === event.public_id || !one.lease).forEach(free);
    else if (event.event === 'granted') {
      const lease = { public_id: event.public_id, namespace: event.namespace, resources: event.resources, holder: event.holder, agent_id: event.agent_id, state: 'active', acquired_at_unix_ms: event.at_unix_ms };
      hold(lease);
      if (fetching.size < 8) fetchLease(event.public_id); else reload();
      recount();
    } else if (fetching.size < 8) fetchLease(event.public_id); else reload();
    redraw();
  });
  draw(); load();
  return { close() { stop(); rowList.close(); [redraw, reload, recount].forEach((one) => one.cancel()); } };
}

function cells({ namespace, resource, text, lease, waiters, version }) {
  const cell = (label, kind, ...children) => h('div', { role: 'cell', class: kind, 'data-label': label }, ...children);
  const none = () => h('span', { class: 'none' }, '–');
  return [
    cell('Key', 'first', link(toKey(namespace, resource), name(text)), h('span', { class: 'hint ns-of' }, name(namespace))),
    cell('Holder', 'holder', lease ? [name(partyOf(lease)), lease.state !== 'active' && badge(lease.state)] : none()),
    cell('Since', 'num', lease?.acquired_at_unix_ms ? time(lease.acquired_at_unix_ms, 'since') : none()),
    cell('Until', 'num', lease?.expires_at_unix_ms ? time(lease.expires_at_unix_ms, 'until') : none()),
    cell('Waiters', 'num', waiters ? h('strong', {}, number(waiters)) : none()),
    cell('Version', 'num', version ? number(version) : none()),
  ];
}

// One key or other resource: its holder, its last hour, its queue and its document.

import { get, send } from './api.js';
import { edit, reclaim, revoke } from './actions.js';
import { to } from './app.js';
import { badge, clock, empty, failure, h, link, name, now, number, render, section, span, table, time, visible } from './dom.js';
import { coloured } from './json.js';
import { debounce } from './live.js';
import { partyOf, resourceText } from './overview.js';
import { timeline } from './timeline.js';

/** Longer documents are not shown. */
const SHOWN_BYTES_MAX = 262_144;
const SPANS = { '1m': 60_000, '5m': 300_000, '15m': 900_000, '1h': 3_600_000 };

export function open(root, params, context) {
  const namespace = params.ns || 'default';
  const resource = { kind: params.kind || 'KEY', name: params.name ?? '' };
  const text = `${resource.kind}:${resource.name}`;
  const isKey = resource.kind === 'KEY';
  const holder = h('div', {}), past = h('div', {}), queue = h('div', {}), documentPlace = h('div', {}), changes = h('div', {});
  let state = null, stored = null, history = null, contention = null;
  const spans = h('div', { class: 'choice', role: 'group', 'aria-label': 'Time span' });
  /** The shortest span that shows everything that is known. */
  const fitting = () => {
    if (!history) return '1h';
    const oldest = Math.min(history.entries[0]?.at_unix_ms ?? Infinity, ...state.leases.map((lease) => lease.acquired_at_unix_ms));
    return Object.keys(SPANS).find((key) => history.now_unix_ms - oldest < SPANS[key] * 0.95) ?? (oldest === Infinity ? '1m' : '1h');
  };
  const drawPast = () => {
    const chosen = SPANS[params.span] ? params.span : fitting();
    render(spans, Object.keys(SPANS).map((key) => h('button', { type: 'button', 'data-id': key, 'aria-pressed': String(key === chosen),
      click: () => { params.span = key; context.replace({ span: key }); drawPast(); } }, key)));
    if (history) render(past, timeline(history, state, contention.waiting, SPANS[chosen]));
  };
  root.append(
    h('p', { class: 'crumbs' }, link(to('keys', { ns: namespace }), 'Keys'), ' / ', name(namespace)),
    h('h1', { class: 'long' }, name(resourceText(resource))), holder,
    section('Last hour', spans, past),
    h('div', { class: 'columns' }, section('Queue', queue), isKey ? section('Document', documentPlace) : null),
    section('Changes', changes));

  async function load() {
    try {
      const of = { namespace, resource: text };
      [state, history, contention, stored] = await Promise.all([
        get('resource_state', of), get('resource_history', of), get('contention', of),
        isKey ? get('keys', { namespace, prefix: resource.name, limit: 1 }).then(({ keys }) => keys.find((one) => one.key === resource.name)) : undefined,
      ]);
      render(holder, holders()); drawPast();
      render(queue, waiters()); render(changes, changeTable());
      if (isKey) await loadDocument();
    } catch (error) { render(holder, failure(error, load)); }
  }

  function holders() {
    if (!state.leases.length) return h('div', { class: 'holder free' }, badge('free', 'good'), h('span', {}, 'No lease on it.'),
      stored && h('span', { class: 'hint' }, `Version ${number(stored.version)}.`));
    const operates = context.me.operates(namespace);
    return state.leases.slice(0, 20).map((lease) => h('div', { class: 'holder' },
      h('dl', {},
        fact('Holder', name(lease.holder)), lease.agent_id && fact('Agent', link(to('agents', { ns: namespace, q: lease.agent_id }), name(lease.agent_id))),
        lease.owner !== lease.holder && fact('Owner', name(lease.owner)),
        fact('State', badge(lease.state)), fact('Since', time(lease.acquired_at_unix_ms, 'since')),
        fact('Until', time(lease.expires_at_unix_ms, 'until')),
        fact('Token', h('code', {}, String(lease.fencing_token))), fact('Epoch', h('code', {}, String(lease.lease_epoch))),
        lease.member_count > 1 && fact('Bundle', `${lease.member_count} resources`), fact('Lease', h('code', { class: 'id' }, lease.public_id))),
      operates && h('div', { class: 'actions' },
        lease.state === 'revoking' || lease.state === 'expired'
          ? h('button', { type: 'button', class: 'danger', click: () => reclaim(lease, load) }, 'Reclaim…')
          : h('button', { type: 'button', class: 'danger', click: () => revoke(lease, load) }, 'Revoke…'))));
  }

  function waiters() {
    const { waiting, more } = contention;
    if (!waiting.length) return empty('No waiters');
    return [table('Queue', ['Place', 'Waiter', 'Reason', 'Blocked by', '#Waits'], waiting.map((row, at) => [String(at + 1), name(partyOf(row)), row.reason && name(row.reason),
      row.blocked_by.length ? name(partyOf(row.blocked_by[0])) : 'earlier waiters', time(now() - row.age_ms, 'for')])),
    more && h('p', { class: 'hint' }, 'Only the first 100 are listed.')];
  }

  function changeTable() {
    const rows = [...history.entries].reverse();
    if (!rows.length) return empty('Nothing happened', `Complete since ${clock(history.since_unix_ms)}.`);
    return [table('Changes', ['Time', 'Event', 'Who', '#Epoch', '#Token', '#Version'], rows.map((row) => [h('span', { class: 'num' }, clock(row.at_unix_ms, true)),
      h('span', {}, badge(row.event), row.how && h('span', { class: 'hint' }, ` ${row.how.replace('_', ' ')}`)), name(partyOf(row)),
      row.lease_epoch ? String(row.lease_epoch) : null, row.fencing_token ? String(row.fencing_token) : null, row.version ? number(row.version) : null])),
    rows.length > 200 && h('p', { class: 'hint' }, `The latest 200 of ${number(rows.length)}.`)];
  }

  let shownEtag = null;
  async function loadDocument() {
    const etag = stored?.state_etag ?? '';
    if (etag === shownEtag) return;
    const { me } = context;
    const mayEdit = me.can(namespace, 'w') && me.can(namespace, 'r');
    const editing = mayEdit && h('button', { type: 'button', 'data-id': 'edit', click: () => edit(namespace, resource.name, () => { shownEtag = null; load(); }) }, 'Edit…');
    const bytes = stored?.state_bytes ?? 0;
    const about = etag && h('p', { class: 'hint' }, `Version ${number(stored.version)}, ${number(bytes)} bytes, ${span(now() - stored.updated_at_unix * 1000)} ago`);
    let content;
    if (!etag) content = empty('No document');
    else if (!me.can(namespace, 'p')) content = h('p', { class: 'hint' }, 'Reading it without a lease needs the right p in this namespace.');
    else if (bytes > SHOWN_BYTES_MAX) content = h('p', { class: 'hint' }, 'Too long to be shown here: read it with `lockd client get`.');
    else {
      const response = await send('read_state', { namespace, key: resource.name, public: '1' });
      content = h('pre', { class: 'document', tabindex: '0' }, coloured(await response.text(), h, visible));
    }
    shownEtag = etag;
    render(documentPlace, about, content, editing && h('div', { class: 'actions' }, editing));
  }

  const refresh = debounce(20, load);
  const stop = context.live.listen((event) => {
    const mine = !event || (event.namespace === namespace && event.resources.some((one) => one.kind === resource.kind && one.name === resource.name));
    if (mine) refresh();
  });
  const timer = setInterval(() => { if (history) drawPast(); }, 5000);
  render(holder, empty('Reading'));
  load();
  return { close() { stop(); clearInterval(timer); refresh.cancel(); } };
}

const fact = (term, value) => h('div', {}, h('dt', {}, term), h('dd', {}, value));

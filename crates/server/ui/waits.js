// Waits: who waits for whom, and who and what blocks the most.

import { get } from './api.js';
import { to } from './app.js';
import { empty, failure, h, link, name, now, number, render, section, table, time } from './dom.js';
import { graph } from './graph.js';
import { debounce } from './live.js';
import { partyOf, resourceLink } from './overview.js';

export function open(root, params, context) {
  const picture = h('div', {}), blockers = h('div', {}), spots = h('div', {}), queue = h('div', {}), victims = h('div', {}), timeouts = h('div', {});
  const problem = h('div', {});
  root.append(h('h1', {}, 'Waits'), problem, section('Who waits for whom', picture),
    h('div', { class: 'columns' }, section('Blocks the most', blockers), section('Most contended resources', spots)),
    section('Waiters', queue), h('div', { class: 'columns' }, section('Refused by wait-die', victims), section('Timed out', timeouts)));
  const load = async () => {
    try {
      const found = await get('contention', { namespace: context.ns });
      render(problem);
      render(picture, found.waiting.length ? graph(found.waiting) : empty('No waiters', 'Every request for a lease was granted or refused at once.'));
      render(blockers, blockersOf(found.waiting));
      render(spots, hotspots(found));
      render(queue, waiters(found));
      render(victims, found.victims.length ? table('Refused by wait-die', ['Who', 'Wanted', '#Refused'], found.victims.map((row) => [who(row), row.resource && resourceLink(row.namespace, row.resource), number(row.died)])) : empty('None recently'));
      render(timeouts, found.timeouts.length ? table('Timed out', ['Who', '#Waits', '#Leases'], found.timeouts.map((row) => [who(row), number(row.waits), number(row.leases)])) : empty('None recently'));
    } catch (error) { render(problem, failure(error, load)); }
  };
  const refresh = debounce(50, load);
  const stop = context.live.listen(refresh);
  const timer = setInterval(refresh, 5000);
  load();
  return { close() { stop(); clearInterval(timer); refresh.cancel(); } };
}

const who = (row) => (row.agent_id ? link(to('agents', { ns: row.namespace, q: row.agent_id }), name(row.agent_id)) : name(row.identity ?? row.holder));

/** The parties by how many waiters they block, with one of the resources. */
export function blocking(waiting) {
  const found = new Map();
  for (const waiter of waiting) for (const lease of waiter.blocked_by) {
    const key = `${waiter.namespace}\n${partyOf(lease)}`;
    const row = found.get(key) ?? { ...lease, namespace: waiter.namespace, waiters: new Set(), resource: waiter.resources[0] };
    row.waiters.add(waiter);
    found.set(key, row);
  }
  return [...found.values()].sort((a, b) => b.waiters.size - a.waiters.size);
}

function blockersOf(waiting) {
  const rows = blocking(waiting).slice(0, 20);
  if (!rows.length) return empty('Nothing blocks');
  return table('Blocks the most', ['Who', 'With', 'Reason', '#Waiters', '#Until'], rows.map((row) => [
    who(row), resourceLink(row.namespace, row.resource), row.reason && name(row.reason), number(row.waiters.size), time(now() + row.remaining_ms, 'until')]));
}

function hotspots({ hotspots: rows }) {
  if (!rows.length) return empty('No contention recently');
  return table('Most contended resources', ['Resource', '#Blocked', '#Timed out'], rows.map((row) => [resourceLink(row.namespace, row), number(row.blocked), number(row.timed_out)]));
}

function waiters({ waiting, more }) {
  if (!waiting.length) return empty('No waiters');
  return [table('Waiters', ['Waiter', 'Resource', 'Blocked by', 'Reason', '#Position', '#Waits'], waiting.map((row) => [
    who(row), [resourceLink(row.namespace, row.resources[0]), row.resources.length > 1 && h('span', { class: 'hint' }, ` +${row.resources.length - 1}`)],
    row.blocked_by.length ? row.blocked_by.slice(0, 3).map((lease, at) => [at ? ', ' : '', name(partyOf(lease))]) : 'earlier waiters',
    row.reason && name(row.reason), number(row.position), time(now() - row.age_ms, 'for')])),
  more && h('p', { class: 'hint' }, 'Only the first 100 are listed.')];
}

// Overview: how many leases and waiters, how fast, and what needs attention first.

import { get, list, send } from './api.js';
import { to, toKey } from './app.js';
import { badge, clock, empty, failure, h, link, name, now, number, render, section, span, table, time } from './dom.js';
import { debounce } from './live.js';
import { samples, spark, sum } from './plot.js';

const EVERY_MS = 2000;
const POINTS = 60;
const SHOWN = 6;

/** Kept while the console is open, so that a visit to another page leaves no gap. */
const kept = { points: [], last: null };

export const partyOf = (row) => row.agent_id ?? row.identity ?? row.holder;
export const resourceText = (resource) => (resource.kind === 'KEY' ? resource.name : `${resource.kind}:${resource.name}`);
export const resourceLink = (namespace, resource) => link(toKey(namespace, resource), name(resourceText(resource)));

export function open(root, _, context) {
  const tiles = h('div', { class: 'tiles' });
  const state = h('div', {});
  const waits = h('div', {}), ends = h('div', {}), recent = h('div', {});
  root.append(h('h1', {}, 'Overview'), state, tiles, h('div', { class: 'columns' },
    section('Longest waits', waits), section('Next deadlines', ends)), section('Latest events', recent));
  const lists = async () => {
    const params = { namespace: context.ns };
    try {
      const [contention, leases] = await Promise.all([get('contention', params), list('leases', 'leases', params, 1000)]);
      render(waits, waiting(contention));
      render(ends, deadlines(leases));
    } catch (error) { render(waits, failure(error, lists)); }
  };
  const refresh = debounce(50, lists);
  const measure = async () => {
    try {
      const [text, ready] = await Promise.all([
        send('metrics').then((response) => response.text()),
        send('readyz', {}, { accept: [503] }).then((response) => response.json()),
      ]);
      keep(samples(text));
      render(tiles, tilesOf(context));
      render(state, readiness(ready));
    } catch (error) { render(state, failure(error)); }
  };
  const drawEvents = () => {
    const events = context.live.recent.filter((event) => !context.ns || event.namespace === context.ns).slice(0, SHOWN);
    render(recent, events.length ? eventTable(events) : empty('No events since the console was opened', 'Grants, releases, expiries and conflicts appear here as they happen.'));
  };
  const redraw = debounce(30, drawEvents);
  const stop = context.live.listen((event) => {
    if (event) redraw();
    refresh();
  });
  const timer = setInterval(measure, EVERY_MS);
  measure(); lists(); drawEvents();
  return { close() { stop(); clearInterval(timer); refresh.cancel(); redraw.cancel(); } };
}

function keep(found) {
  const at = Date.now();
  const totals = { grants: sum(found, 'lockd_grants_total'), refusals: sum(found, 'lockd_refusals_total'), commits: sum(found, 'lockd_commits_total') };
  const seconds = kept.last ? (at - kept.last.at) / 1000 : 0;
  const rate = (key) => (seconds > 0 ? Math.max(0, (totals[key] - kept.last.totals[key]) / seconds) : 0);
  kept.points.push({
    leases: sum(found, 'lockd_leases'), waiters: sum(found, 'lockd_waiters'), oldest: sum(found, 'lockd_oldest_waiter_seconds'),
    grants: rate('grants'), refusals: rate('refusals'), commits: rate('commits'),
    started: sum(found, 'lockd_start_time_seconds'),
  });
  if (kept.points.length > POINTS) kept.points.shift();
  kept.last = { at, totals };
}

function tilesOf(context) {
  const last = kept.points.at(-1);
  const rate = (value) => (value >= 100 ? Math.round(value) : value.toFixed(1));
  const tile = (title, value, key, href) => h('div', { class: 'tile' },
    href ? link(href, title, { class: 'title', 'data-id': title }) : h('span', { class: 'title' }, title),
    h('strong', { class: 'num' }, value), key ? spark(kept.points.map((point) => point[key]), `${title}, last two minutes`) : null);
  return [
    tile('Leases', number(last.leases), 'leases', to('keys', { held: '1' })),
    tile('Waiters', number(last.waiters), 'waiters', to('waits')),
    tile('Oldest waiter', last.waiters ? span(last.oldest * 1000) : '–', 'oldest', to('waits')),
    tile('Grants / s', rate(last.grants), 'grants'),
    tile('Refusals / s', rate(last.refusals), 'refusals'),
    tile('Commits / s', rate(last.commits), 'commits'),
    h('div', { class: 'tile' }, h('span', { class: 'title' }, 'Version'), h('strong', {}, context.me.version),
      h('span', { class: 'hint' }, `up ${span(now() - last.started * 1000)}`)),
  ];
}

function readiness(ready) {
  if (ready.ready && !ready.torn_tails?.length) return h('p', { class: 'ready' }, badge('ready', 'good'), ' Leases are granted durably.');
  if (ready.ready) return h('p', { class: 'ready' }, badge('ready', 'good'), ` ${ready.torn_tails.length} torn tail cut off at the last start.`);
  return h('p', { class: 'ready' }, badge('not ready', 'bad'), ' ', name(ready.reason ?? ''));
}

function waiting({ waiting: rows, more }) {
  if (!rows.length) return empty('No waiters');
  const oldest = [...rows].sort((a, b) => b.age_ms - a.age_ms).slice(0, SHOWN);
  return [table('Longest waits', ['Waiter', 'Resource', 'Blocked by', '#Waits'], oldest.map((row) => [
    name(partyOf(row)), resourceLink(row.namespace, row.resources[0]),
    row.blocked_by.length ? name(partyOf(row.blocked_by[0])) : 'earlier waiters', time(now() - row.age_ms, 'for')])),
  (more || rows.length > SHOWN) && h('p', { class: 'more' }, link(to('waits'), `All waits`))];
}

function deadlines({ rows, more }) {
  if (!rows.length) return empty('No leases');
  const next = [...rows].sort((a, b) => a.expires_at_unix_ms - b.expires_at_unix_ms).slice(0, SHOWN);
  return [table('Next deadlines', ['Resource', 'Holder', 'State', '#Ends'], next.map((row) => [
    resourceLink(row.namespace, row.resources[0]), name(partyOf(row)), badge(row.state), time(row.expires_at_unix_ms, 'until')])),
  more && h('p', { class: 'hint' }, 'Among the first 1,000 leases.')];
}

/** Events, the latest first. */
export function eventTable(events) {
  return table('Events', ['Time', 'Event', 'Resource', 'Holder', '#Token'], events.map((event) => [
    h('span', { class: 'num' }, clock(event.at_unix_ms, true)),
    h('span', {}, badge(event.event), event.how && h('span', { class: 'hint' }, ` ${event.how.replace('_', ' ')}`)),
    event.resources.length ? [resourceLink(event.namespace, event.resources[0]), event.resources.length > 1 && h('span', { class: 'hint' }, ` +${event.resources.length - 1}`)] : null,
    name(partyOf(event)), event.fencing_token ? String(event.fencing_token) : event.version ? `v${event.version}` : null]));
}

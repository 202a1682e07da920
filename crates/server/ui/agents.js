// Agents: their state, leases, intents and last activity.

import { get, list } from './api.js';
import { pause } from './actions.js';
import { badge, empty, failure, h, name, number, render, table, time } from './dom.js';
import { debounce } from './live.js';
import { resourceLink } from './overview.js';
import { blocking } from './waits.js';

const AGENTS_MAX = 1000, LEASES_MAX = 5000, NAMESPACES_MAX = 50;

export function open(root, params, context) {
  const place = h('div', {}), count = h('p', { class: 'hint', role: 'status' });
  let agents = null, more = false;
  const view = { q: params.q ?? '' };
  const search = h('input', { type: 'search', id: 'search', placeholder: 'Part of agent or identity', value: view.q, autocomplete: 'off', spellcheck: 'false',
    input: () => { view.q = search.value; context.replace({ q: view.q }); draw(); } });
  root.append(h('h1', {}, 'Agents'), h('div', { class: 'tools' }, h('label', { for: 'search' }, 'Search'), search, count), h('div', { class: 'card' }, place));

  function draw() {
    if (!agents) return render(place, empty('Reading agents'));
    const found = agents.filter((one) => one.agent_id.includes(view.q) || one.identity.includes(view.q));
    count.textContent = `${number(found.length)} of ${number(agents.length)} agents${more ? ', and more that are not read' : ''}${found.length > 200 ? '; 200 are shown' : ''}`;
    if (!found.length) return render(place, empty(agents.length ? 'No agent matches' : 'No agents', agents.length ? '' : 'A program becomes an agent when it names an agent_id in a request.'));
    render(place, table('Agents', ['Agent', 'Identity', 'State', '#Leases', 'Intents', '#Blocks', '#Last activity', 'Act'].filter((_, at) => at < 7 || context.me.role === 'operator'),
      found.map((one) => [name(one.agent_id), name(one.identity), badge(one.state.toLowerCase().replace('_', ' '), one.state.toLowerCase()), number(one.leases), intents(one),
        one.blocks ? h('strong', {}, number(one.blocks)) : null, one.last_activity_unix_ms ? time(one.last_activity_unix_ms, 'since') : null,
        ...(context.me.role === 'operator' ? [context.me.operates(one.namespace) && h('button', { type: 'button', 'data-id': `pause ${one.agent_id}`, click: () => pause(one, load) }, one.state === 'PAUSED' ? 'Resume…' : 'Pause…')] : [])])));
  }

  async function load() {
    try {
      const namespaces = context.ns ? [context.ns] : (await list('namespaces', 'namespaces', {}, NAMESPACES_MAX)).rows.filter((one) => context.me.can(one, 'r'));
      const pages = await Promise.all(namespaces.map((namespace) => list('agents', 'agents', { namespace }, AGENTS_MAX)));
      const leases = await list('leases', 'leases', { namespace: context.ns }, LEASES_MAX);
      const { waiting } = await get('contention', { namespace: context.ns });
      more = pages.some((page) => page.more);
      const blocks = new Map(blocking(waiting).map((row) => [`${row.namespace}\n${row.agent_id}`, row.waiters.size]));
      agents = pages.flatMap((page) => page.rows);
      const byId = new Map(agents.map((one) => [`${one.namespace}\n${one.agent_id}`, one]));
      byId.forEach((one, id) => { one.blocks = blocks.get(id) ?? 0; one.held = []; one.wanted = []; });
      for (const lease of leases.rows) byId.get(`${lease.namespace}\n${lease.agent_id}`)?.held.push(...lease.resources);
      for (const row of waiting) byId.get(`${row.namespace}\n${row.agent_id}`)?.wanted.push(...row.resources);
      agents.sort((a, b) => b.blocks - a.blocks || b.leases - a.leases || (a.agent_id < b.agent_id ? -1 : 1));
      draw();
    } catch (error) { render(place, failure(error, load)); }
  }

  const refresh = debounce(200, load);
  const stop = context.live.listen(refresh);
  draw(); load();
  return { close() { stop(); refresh.cancel(); } };
}

/** What it holds, and what it waits for. */
function intents(agent) {
  const one = (verb, resources) => resources.length > 0 && h('div', { class: 'intent' }, h('span', { class: 'hint' }, `${verb} ${(resources[0].predicate ?? 'MUTATES').toLowerCase()} `),
    resourceLink(agent.namespace, resources[0]), resources.length > 1 && h('span', { class: 'hint' }, ` +${number(resources.length - 1)}`));
  const shown = [one('holds,', agent.held), one('waits,', agent.wanted)].filter(Boolean);
  return shown.length ? shown : null;
}

// Namespaces that the caller may see, its rights in them, and the quotas of an operator's scopes.

import { list } from './api.js';
import { pauseIdentity } from './actions.js';
import { to } from './app.js';
import { badge, empty, failure, h, link, name, number, render, section, span, table } from './dom.js';
import { debounce } from './live.js';

const LEASES_MAX = 5000;
const RIGHTS = { r: 'see', w: 'acquire and write', p: 'read documents', m: 'hold after expiry' };

export function open(root, params, context) {
  const { me } = context;
  const spaces = h('div', {}), quotas = h('div', {});
  root.append(h('h1', {}, 'Namespaces and quotas'), section('Namespaces', spaces), me.role === 'operator' ? section('Quotas and pauses', quotas) : null);
  const load = async () => {
    try {
      const [found, leases] = await Promise.all([list('namespaces', 'namespaces', {}, 1000), list('leases', 'leases', {}, LEASES_MAX)]);
      const counts = new Map();
      leases.rows.forEach((lease) => counts.set(lease.namespace, (counts.get(lease.namespace) ?? 0) + 1));
      const rows = found.rows.sort().map((ns) => [link(to('keys', { ns }), name(ns)), number(counts.get(ns) ?? 0),
        Object.entries(RIGHTS).filter(([right]) => me.can(ns, right)).map(([, text]) => text).join(', '), me.operates(ns) ? badge('operator', 'operator') : badge(me.role, me.role)]);
      render(spaces, rows.length ? table('Namespaces', ['Namespace', `#Leases`, 'Your rights', 'Your role'], rows) : empty('No namespace is in use', 'A namespace exists as soon as it is used.'),
        leases.more && h('p', { class: 'hint' }, `Counted among the first ${number(LEASES_MAX)} leases.`));
    } catch (error) { render(spaces, failure(error, load)); }
    if (me.role !== 'operator') return;
    try {
      const { rows } = await list('quotas', 'quotas', {}, 1000);
      const any = () => h('span', { class: 'none' }, 'all');
      render(quotas, rows.length ? table('Quotas', ['Namespace', 'Identity', 'Grants', '#Leases', '#Total time', '#Idle', '#Acquires / s', 'Act'], rows.map((row) => [
        row.namespace ? name(row.namespace) : any(), row.identity ? name(row.identity) : any(), row.paused ? badge('paused', 'bad') : badge('on', 'good'),
        row.max_leases && number(row.max_leases), row.max_total_ms && span(row.max_total_ms), row.idle_ms && span(row.idle_ms), row.acquires_per_second && number(row.acquires_per_second),
        row.identity && (row.namespace ? me.operates(row.namespace) : me.operates('*')) && h('button', { type: 'button', click: () => pauseIdentity(row, load) }, row.paused ? 'Resume…' : 'Pause…')]))
        : empty('No quotas', 'Set one with `lockd client quota`.'));
    } catch (error) { render(quotas, failure(error, load)); }
  };
  const refresh = debounce(1000, load);
  const stop = context.live.listen(refresh);
  load();
  return { close() { stop(); refresh.cancel(); } };
}

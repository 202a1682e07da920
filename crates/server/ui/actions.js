// Acts with a confirmation that says what they end. Only what the caller may do is offered.

import { get, post, send } from './api.js';
import { failure, h, name, render, time, visible } from './dom.js';
import { pretty } from './json.js';
import { partyOf, resourceText } from './overview.js';

/** A modal dialog; `close` ends it. */
function dialog(title, ...children) {
  const node = h('dialog', { 'aria-labelledby': 'dialog-title' }, h('h2', { id: 'dialog-title' }, title), ...children);
  document.body.append(node);
  node.addEventListener('close', () => node.remove());
  node.showModal();
  return node;
}

/** Runs an act, shows its failure in the dialog, and closes it otherwise. */
async function act(node, place, work, done) {
  node.querySelectorAll('button').forEach((button) => { button.disabled = true; });
  try { await work(); node.close(); done(); } catch (error) {
    render(place, failure(error));
    node.querySelectorAll('button').forEach((button) => { button.disabled = false; });
  }
}

function leaseFacts(lease) {
  const fact = (term, value) => h('div', {}, h('dt', {}, term), h('dd', {}, value));
  return h('dl', {}, fact('Holder', name(partyOf(lease))),
    fact(lease.member_count > 1 ? `${lease.member_count} resources` : 'Resource', name(resourceText(lease.resources[0]))),
    fact('Token', h('code', {}, String(lease.fencing_token))), fact('Since', time(lease.acquired_at_unix_ms, 'since')), fact('Lease', h('code', { class: 'id' }, lease.public_id)));
}

const cancel = (node) => h('button', { type: 'button', click: () => node().close() }, 'Cancel');

export async function revoke(shown, done) {
  const lease = await get('lease', { id: shown.public_id }).catch(() => shown);
  const place = h('div', {}), token = lease.fencing_token;
  const all = (reclaims) => act(node, place, async () => {
    await post('revoke_lease', { id: lease.public_id }, '');
    if (reclaims) await post('reclaim_lease', { id: lease.public_id }, '');
  }, done);
  const node = dialog(`Revoke token ${token}?`, leaseFacts(lease),
    h('p', {}, `The holder loses its authority at once: writes with token ${token} are refused. The resources stay blocked until they are reclaimed, so that work in progress can stop first.`), place,
    h('div', { class: 'actions' }, cancel(() => node),
      h('button', { type: 'button', class: 'danger', click: () => all(false) }, `Revoke token ${token}`),
      h('button', { type: 'button', class: 'danger', click: () => all(true) }, 'Revoke and reclaim')));
}

export async function reclaim(shown, done) {
  const lease = await get('lease', { id: shown.public_id }).catch(() => shown);
  const place = h('div', {});
  const node = dialog(`Reclaim what token ${lease.fencing_token} held?`, leaseFacts(lease),
    h('p', {}, 'The resources become free, and the next waiter gets them. Make sure that the former holder has stopped, or that every write is checked against the token.'), place,
    h('div', { class: 'actions' }, cancel(() => node), h('button', { type: 'button', class: 'danger',
      click: () => act(node, place, () => post('reclaim_lease', { id: lease.public_id }, ''), done) }, `Reclaim from token ${lease.fencing_token}`)));
}

/** Pauses or resumes an agent. */
export function pause(agent, done) {
  const paused = agent.state !== 'PAUSED', place = h('div', {});
  const verb = paused ? 'Pause' : 'Resume';
  const node = dialog(`${verb} ${visible(agent.agent_id)}?`,
    h('p', {}, paused ? `No more leases are granted to it. The ${agent.leases} that it holds end by themselves, or are revoked.` : 'It is granted leases again.'), place,
    h('div', { class: 'actions' }, cancel(() => node), h('button', { type: 'button', class: paused ? 'danger' : 'primary',
      click: () => act(node, place, () => post('set_agent', { id: agent.agent_id }, { namespace: agent.namespace, state: paused ? 'PAUSED' : 'ALIVE' }), done) }, verb)));
}

/** Resumes, or pauses, the grants of an identity. */
export function pauseIdentity(scope, done) {
  const place = h('div', {}), verb = scope.paused ? 'Resume' : 'Pause';
  const node = dialog(`${verb} grants to ${visible(scope.identity)}?`, h('p', {}, scope.namespace ? `In the namespace ${visible(scope.namespace)}.` : 'In all namespaces.'), place,
    h('div', { class: 'actions' }, cancel(() => node), h('button', { type: 'button', class: scope.paused ? 'primary' : 'danger',
      click: () => act(node, place, () => post('pause', {}, { namespace: scope.namespace ?? undefined, identity: scope.identity, paused: !scope.paused }), done) }, verb)));
}

const TTL_SECONDS = 60;

/** Edits a document under a lease, which is renewed while the dialog is open and released after. */
export async function edit(namespace, key, done) {
  const place = h('div', {}), about = h('p', { class: 'hint' }, 'Acquiring a lease');
  const text = h('textarea', { rows: '16', spellcheck: 'false', 'aria-label': 'Document', disabled: true });
  const save = h('button', { type: 'button', class: 'primary', disabled: true, click: () => commit() }, 'Commit');
  const node = dialog(`Edit ${visible(key)}`, about, text, place, h('div', { class: 'actions' }, cancel(() => node), save));
  let lease = null, version = '0';
  const release = (options) => lease && send('release', {}, { body: JSON.stringify({ lease_id: lease.lease_id }), ...options }).catch(() => {});
  const leaving = () => release({ keepalive: true });
  const renewal = setInterval(() => {
    if (lease) post('keepalive', {}, { lease_id: lease.lease_id, ttl_seconds: TTL_SECONDS }).catch((error) => { render(place, failure(error)); save.disabled = true; });
  }, (TTL_SECONDS * 1000) / 3);
  addEventListener('pagehide', leaving);
  node.addEventListener('close', () => { clearInterval(renewal); removeEventListener('pagehide', leaving); Promise.resolve(release()).then(done); });
  const commit = () => act(node, place, () => {
    JSON.parse(text.value);
    return send('update_state', { namespace, key }, { body: text.value, headers: { 'x-lease-id': lease.lease_id, 'x-fencing-token': String(lease.fencing_token), 'x-if-version': version } });
  }, () => {});
  try {
    const granted = await post('acquire', {}, { namespace, key, ttl_seconds: TTL_SECONDS, owner: 'console' });
    if (!node.isConnected) { lease = granted; release(); return; }
    lease = granted;
    const response = await send('read_state', { namespace, key }, { headers: { 'x-lease-id': lease.lease_id } });
    version = response.headers.get('x-key-version') ?? String(lease.version);
    text.value = response.status === 204 ? '' : pretty(await response.text());
    about.textContent = `Under a lease with token ${lease.fencing_token}, from version ${version}. Committed only if nothing else has changed it.`;
    text.disabled = save.disabled = false;
    text.focus();
  } catch (error) {
    about.textContent = '';
    const held = error.code === 'waiting' && error.body.holder;
    render(place, held ? h('div', { class: 'failure', role: 'alert' }, h('p', {}, 'Held by ', name(error.body.holder), '. Revoke its lease first, or wait.')) : failure(error));
  }
}

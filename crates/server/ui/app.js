// Pages by the fragment of the URL: `#/keys?ns=orders&prefix=a`. The whole state of a view is in it.

import { ApiError, Me, get, list, openSession } from './api.js';
import { badge, failure, h, name, render, setClock, tick, visible } from './dom.js';
import { Live } from './live.js';

const PAGES = {
  overview: ['Overview', () => import('./overview.js')],
  keys: ['Keys', () => import('./keys.js')],
  waits: ['Waits', () => import('./waits.js')],
  agents: ['Agents', () => import('./agents.js')],
  events: ['Events', () => import('./events.js')],
  namespaces: ['Namespaces', () => import('./namespaces.js')],
  key: [null, () => import('./key.js')],
};
const main = document.getElementById('main');
const nav = document.getElementById('nav');
const selector = document.getElementById('ns');
let page = null;
let shown = 0;

/** The link to a page with these parameters; the namespace is kept unless it is among them. */
export function to(target, params = {}) {
  const query = new URLSearchParams();
  const all = { ns: context.ns, ...params };
  for (const [key, value] of Object.entries(all)) if (value !== undefined && value !== '') query.set(key, value);
  return `#/${target}${query.size ? `?${query}` : ''}`;
}

/** The link to the page of a resource. */
export const toKey = (namespace, resource) =>
  to('key', { ns: namespace, kind: resource.kind === 'KEY' ? undefined : resource.kind, name: resource.name });

const context = {
  me: null,
  live: new Live(showState),
  ns: '',
  /** Replaces parameters of this view in the URL, without a new entry in the browser's history. */
  replace(params) {
    const { target, query } = route();
    const all = { ...Object.fromEntries(query), ...params };
    history.replaceState(null, '', to(target, all));
    fillNav();
  },
};

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, '').split(/\?(.*)/s, 2);
  return { target: PAGES[path] ? path : 'overview', query: new URLSearchParams(query ?? '') };
}

async function show() {
  const turn = ++shown;
  const { target, query } = route();
  const [title, load] = PAGES[target];
  context.ns = query.get('ns') ?? '';
  fillNav();
  document.querySelectorAll('dialog').forEach((one) => one.close());
  page?.close?.();
  page = null;
  const params = Object.fromEntries(query);
  document.title = `${visible(title ?? params.name ?? 'Key')} · lockd`;
  try {
    const module = await load();
    if (turn !== shown) return;
    main.replaceChildren();
    page = module.open(main, params, context);
  } catch (error) {
    // A page that could not be loaded says only so.
    if (turn === shown) render(main, failure(error instanceof TypeError ? new ApiError(0, null, 'the server cannot be reached') : error, show));
  }
}

function fillNav() {
  const { target } = route();
  const current = target === 'key' ? 'keys' : target;
  render(nav, Object.entries(PAGES).filter(([, [title]]) => title).map(([key, [title]]) =>
    h('a', { href: to(key), 'data-id': key, 'aria-current': key === current ? 'page' : undefined }, title)));
  selector.value = context.ns;
  if (selector.value !== context.ns) {
    selector.append(h('option', { value: context.ns }, visible(context.ns)));
    selector.value = context.ns;
  }
}

async function fillNamespaces() {
  const { rows } = await list('namespaces', 'namespaces', {}, 1000);
  const names = [...new Set([...rows, ...(context.ns ? [context.ns] : [])])].sort();
  selector.replaceChildren(h('option', { value: '' }, 'All'), ...names.map((ns) => h('option', { value: ns }, visible(ns))));
  selector.value = context.ns;
}

function showState(state, error) {
  const mark = document.getElementById('live');
  if (state === 'live' && mark.dataset.state === 'broken' && main.querySelector('.failure')) show();
  const texts = { live: 'Live', connecting: 'Connecting', broken: 'Disconnected' };
  mark.dataset.state = state;
  mark.textContent = texts[state];
  mark.title = error ? `What is shown may be out of date: ${visible(error.message)}` : '';
  document.body.classList.toggle('stale', state === 'broken');
}

function theme() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light')) === 'dark';
  const stored = localStorage.getItem('lockd-console-theme');
  if (stored) root.dataset.theme = stored;
  document.getElementById('theme').addEventListener('click', () => {
    root.dataset.theme = dark() ? 'light' : 'dark';
    localStorage.setItem('lockd-console-theme', root.dataset.theme);
  });
}

function keyboard(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest('input, textarea, select, dialog')) return;
  const search = main.querySelector('input[type=search]');
  if (event.key === '/' && search) { event.preventDefault(); search.focus(); search.select(); }
}

async function start() {
  theme();
  try {
    await openSession();
    const caller = await get('whoami');
    setClock(caller.now_unix_ms);
    context.me = new Me(caller);
  } catch (error) {
    const refused = error instanceof ApiError && error.status === 401;
    showState('broken', error);
    const lost = new ApiError(0, null, 'this console session is over; run `lockc console` again and open the link that it prints');
    render(main, failure(refused ? lost : error, refused ? null : () => location.reload()));
    return;
  }
  const { me } = context;
  document.getElementById('who').append(name(me.identity), badge(me.role, me.role));
  addEventListener('hashchange', show);
  addEventListener('keydown', keyboard);
  selector.addEventListener('change', () => { location.hash = to(route().target === 'key' ? 'keys' : route().target, { ...Object.fromEntries(route().query), ns: selector.value }); });
  setInterval(tick, 1000);
  context.live.run();
  show();
  fillNamespaces().catch(() => {});
  // So that every page opens, and says what is wrong, while the server is gone.
  Object.values(PAGES).forEach(([, load]) => load().catch(() => {}));
}

start();

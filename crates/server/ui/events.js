// Events: live, filtered, pausable.

import { empty, h, number, render } from './dom.js';
import { debounce } from './live.js';
import { eventTable, resourceText } from './overview.js';

const NAMES = ['granted', 'released', 'expired', 'revoked', 'reclaimed', 'committed', 'contention'];

export function open(root, params, context) {
  const view = { q: params.q ?? '', event: NAMES.includes(params.event) ? params.event : '', paused: false };
  const { recent: kept } = context.live;
  let frozen = null;
  const place = h('div', {}), count = h('p', { class: 'hint', role: 'status' });
  const search = h('input', { type: 'search', id: 'search', placeholder: 'Part of resource, holder or lease', value: view.q, autocomplete: 'off', spellcheck: 'false',
    input: () => { view.q = search.value; context.replace({ q: view.q }); draw(); } });
  const kind = h('select', { 'aria-label': 'Event', change: () => { view.event = kind.value; context.replace({ event: view.event }); draw(); } },
    h('option', { value: '' }, 'All events'), NAMES.map((one) => h('option', { value: one }, one)));
  kind.value = view.event;
  const pauser = h('button', { type: 'button', 'aria-pressed': 'false', click: () => {
    view.paused = !view.paused;
    frozen = view.paused ? [...kept] : null;
    pauser.setAttribute('aria-pressed', String(view.paused));
    pauser.textContent = view.paused ? 'Resume' : 'Pause';
    draw();
  } }, 'Pause');
  root.append(h('h1', {}, 'Events'), h('div', { class: 'tools' }, h('label', { for: 'search' }, 'Search'), search, kind, pauser, count), h('div', { class: 'card' }, place));

  const fits = (event) => (!context.ns || event.namespace === context.ns) && (!view.event || event.event === view.event)
    && (!view.q || [event.holder, event.agent_id ?? '', event.public_id ?? '', ...event.resources.map(resourceText)].some((text) => text.includes(view.q)));
  function draw() {
    const found = (frozen ?? kept).filter(fits);
    const missed = frozen ? kept.length - frozen.length : 0;
    count.textContent = `${number(found.length)} events${view.paused ? `, paused${missed > 0 ? `; ${number(missed)} more have arrived` : ''}` : ''}${found.length > 200 ? '; the latest 200 are shown' : ''}`;
    render(place, found.length ? eventTable(found) : empty(kept.length ? 'No event matches' : 'No events yet', kept.length ? '' : 'Events appear here as they become durable.'));
  }
  const redraw = debounce(30, draw);
  const stop = context.live.listen(redraw);
  draw();
  return { close() { stop(); redraw.cancel(); } };
}

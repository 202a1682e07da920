// The stream of events: resumed with Last-Event-ID, and visibly broken while it is.

import { parse, send } from './api.js';

/** The server sends a comment every 15 seconds. */
const SILENCE_MS = 40_000;
const PAUSES_MS = [250, 1000, 2000, 5000];
/** The number of events that are kept for the pages. */
const RECENT_MAX = 1000;

export class Live {
  #listeners = new Set();
  #lastId = '';
  #tries = 0;
  #wake = () => {};
  /** The latest events, the last one first. */
  recent = [];

  /** `onState(state, error)`: `connecting`, `live` or `broken`. */
  constructor(onState) { this.onState = onState; }

  /** `listener(event)` gets every event, and `null` when events were lost. Returns how to stop. */
  listen(listener) {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  async run() {
    addEventListener('online', () => this.#wake());
    for (;;) {
      try { await this.#follow(); } catch (error) { this.onState('broken', error); }
      const pause = PAUSES_MS[Math.min(this.#tries++, PAUSES_MS.length - 1)];
      await new Promise((resolve) => { this.#wake = resolve; setTimeout(resolve, pause); });
    }
  }

  async #follow() {
    const stop = new AbortController();
    let timer = setTimeout(() => stop.abort(), SILENCE_MS);
    const headers = this.#lastId ? { 'last-event-id': this.#lastId } : {};
    const response = await send('events', {}, { headers, signal: stop.signal });
    const resumed = this.#lastId !== '' || this.#tries === 0;
    this.#tries = 0;
    this.onState('live');
    if (!resumed) this.#tell(null);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = '';
    for (;;) {
      const { done, value } = await reader.read();
      clearTimeout(timer);
      if (done) throw new Error('the stream of events ended');
      timer = setTimeout(() => stop.abort(), SILENCE_MS);
      const parts = (text + value).split('\n\n');
      text = parts.pop();
      parts.forEach((part) => this.#event(part));
    }
  }

  #event(part) {
    const fields = Object.fromEntries(part.split('\n').map((line) => line.split(/: ?(.*)/s, 2)));
    if (fields.id) this.#lastId = fields.id;
    if (fields.event === 'reset') { this.#lastId = ''; this.#tell(null); }
    else if (fields.data) this.#tell({ id: fields.id, ...parse(fields.data) });
  }

  #tell(event) {
    if (event) { this.recent.unshift(event); this.recent.length = Math.min(this.recent.length, RECENT_MAX); }
    for (const listener of [...this.#listeners]) listener(event);
  }
}

/** Calls `work` once for many requests within `ms`; never twice at the same time. */
export function debounce(ms, work) {
  let timer = null, running = false, again = false;
  const run = async () => {
    timer = null;
    if (running) { again = true; return; }
    running = true;
    try { await work(); } finally { running = false; if (again) { again = false; request(); } }
  };
  const request = () => { timer ??= setTimeout(run, ms); };
  request.cancel = () => { clearTimeout(timer); timer = null; again = false; };
  return request;
}

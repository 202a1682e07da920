// The calls of the server that the console uses: all of them are in /openapi.json.

const CALLS = {
  whoami: ['GET', '/v1/whoami'],
  readyz: ['GET', '/readyz'],
  metrics: ['GET', '/metrics'],
  namespaces: ['GET', '/v1/namespaces'],
  leases: ['GET', '/v1/leases'],
  lease: ['GET', '/v1/leases/{id}'],
  keys: ['GET', '/v1/keys'],
  resource_state: ['GET', '/v1/resource/{resource}/state'],
  resource_history: ['GET', '/v1/resource/{resource}/history'],
  contention: ['GET', '/v1/contention'],
  agents: ['GET', '/v1/agents'],
  set_agent: ['POST', '/v1/agents/{id}/state'],
  events: ['GET', '/v1/events'],
  quotas: ['GET', '/v1/quotas'],
  read_state: ['GET', '/v1/get_state'],
  update_state: ['POST', '/v1/update_state'],
  acquire: ['POST', '/v1/acquire'],
  keepalive: ['POST', '/v1/keepalive'],
  release: ['POST', '/v1/release'],
  revoke_lease: ['POST', '/v1/leases/{id}/revoke'],
  reclaim_lease: ['POST', '/v1/leases/{id}/reclaim'],
  pause: ['POST', '/v1/pause'],
};

/** A refusal of the server, or no response at all: then `code` is empty. */
export class ApiError extends Error {
  constructor(status, body, text) {
    super(body?.detail || text);
    this.status = status;
    this.code = body?.error ?? '';
    this.body = body ?? {};
  }
}

const SESSION = 'lockd-console-session';
let session = null;

/** Behind `lockc console`: exchanges the token of the URL's fragment, which is valid once, for a session. */
export async function openSession() {
  const token = new URLSearchParams(location.hash.slice(1)).get('token');
  if (token) {
    history.replaceState(null, '', `${location.pathname}#/overview`);
    const response = await fetch('/session', { method: 'POST', headers: { 'x-console-token': token } });
    if (response.ok) localStorage.setItem(SESSION, (await response.json()).session);
  }
  session = localStorage.getItem(SESSION);
}

/** Integers beyond 2^53 stay text: a fencing token must not be rounded. */
const exact = (_, value, context) =>
  typeof value === 'number' && !Number.isSafeInteger(value) && Number.isInteger(value) && context ? context.source : value;
export const parse = (text) => JSON.parse(text, exact);

/** The response to a call. `params` fill the path, the rest is the query. */
export async function send(call, params = {}, options = {}) {
  const [method, template] = CALLS[call];
  const query = new URLSearchParams();
  let path = template;
  for (const [key, value] of Object.entries(params)) {
    if (path.includes(`{${key}}`)) path = path.replace(`{${key}}`, encodeURIComponent(value));
    else if (value !== undefined && value !== '') query.set(key, value);
  }
  const headers = { ...options.headers };
  if (session) headers['x-console-session'] = session;
  if (options.body !== undefined) headers['content-type'] = 'application/json';
  const url = query.size ? `${path}?${query}` : path;
  let response;
  try {
    response = await fetch(url, { method, headers, body: options.body, signal: options.signal, cache: 'no-store', keepalive: options.keepalive });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, null, 'the server cannot be reached');
  }
  if (response.ok || options.accept?.includes(response.status)) return response;
  let body = null;
  try { body = parse(await response.text()); } catch { /* not ours: the status must do */ }
  throw new ApiError(response.status, body, `the server responded with status ${response.status}`);
}

export async function get(call, params, options) {
  return parse(await (await send(call, params, options)).text());
}

export const post = (call, params, body, options) =>
  get(call, params, { ...options, body: typeof body === 'string' ? body : JSON.stringify(body) });

/** All pages of a list, up to `most` rows; `more` says whether there were more. */
export async function list(call, field, params, most, signal) {
  const rows = [];
  let cursor;
  do {
    const page = await get(call, { ...params, limit: Math.min(1000, most), cursor }, { signal });
    rows.push(...page[field]);
    cursor = page.cursor;
  } while (cursor && rows.length < most);
  return { rows: rows.slice(0, most), more: Boolean(cursor) };
}

/** The caller: what it may do is offered, and nothing else. */
export class Me {
  constructor(caller) { Object.assign(this, caller); }
  can(namespace, right) {
    return this.rights.some((one) => (one.namespace === '*' || one.namespace === namespace) && one.rights.includes(right));
  }
  operates(namespace) {
    return this.role === 'operator' && this.rights.some((one) => one.namespace === '*' || one.namespace === namespace);
  }
}

// Pretty-prints JSON text without parsing numbers: a document must not change by being looked at.

const TOKEN = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/gs;

/** Valid JSON, indented by two spaces. */
export function pretty(text) {
  const tokens = text.match(TOKEN) ?? [];
  let out = '', depth = 0;
  const line = () => `\n${'  '.repeat(depth)}`;
  tokens.forEach((token, at) => {
    const previous = tokens[at - 1];
    if (token === '}' || token === ']') {
      depth -= 1;
      out += (previous === '{' || previous === '[' ? '' : line()) + token;
    } else if (token === ',') out += token + line();
    else if (token === ':') out += ': ';
    else {
      if (previous === '{' || previous === '[') out += line();
      out += token;
      if (token === '{' || token === '[') depth += 1;
    }
  });
  return out;
}

/** Pretty-printed text in spans by kind of token. */
export function coloured(text, h, visible) {
  const lines = pretty(text);
  const parts = [];
  let last = 0;
  for (const match of lines.matchAll(TOKEN)) {
    const [token] = match;
    if (/^[{}[\],:]$/.test(token)) continue;
    const isKey = token[0] === '"' && lines[match.index + token.length] === ':';
    const kind = isKey ? 'key' : token[0] === '"' ? 'text' : 'atom';
    parts.push(lines.slice(last, match.index), h('span', { class: `json-${kind}` }, visible(token)));
    last = match.index + token.length;
  }
  parts.push(lines.slice(last));
  return parts;
}

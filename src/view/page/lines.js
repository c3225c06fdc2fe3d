// --------------------------------------------------------------------------------------------------------------- lines
// Two columns of tokens, and a line from each query to each key that is as strong as the weight.

const LISTED = 48;       // tokens of a column, at most
const STEP = 20;         // CSS pixels from one to the next
const FAINTEST = 0.004;  // of a line that can be seen
const CURVE = 0.45;      // of the width: where a line has turned

/** The tokens of an axis that are listed: the part in sight, or what of it lies around the chosen token. */
function listed(axis) {
  const span = Math.min(sight.spans[axis], LISTED);
  const chosen = axis === state.axis || ownText ? state.token : null;
  const middle = chosen !== null && inSight(axis, chosen) ? chosen - Math.floor(span / 2) : sight[axis];
  return [Math.min(Math.max(middle, sight[axis]), sight[axis] + sight.spans[axis] - span), span];
}

function drawLines() {
  const [query, queries] = listed('query'), [key, keys] = listed('key');
  const part = { query, key, spans: { query: queries, key: keys } };
  const cells = shown.source.picture(part, queries, keys);
  const width = Math.max(Math.min(byId('lines').parentElement.clientWidth - 8, 900), 320), side = width * 0.27;
  const context = fit(byId('lines'), width, Math.max(queries, keys) * STEP + 34);
  const y = i => 34 + (i + 0.5) * STEP;
  context.font = '11px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
  context.fillStyle = themeColour('--muted');
  context.textAlign = 'right';
  context.fillText('queries', side, 12);
  context.textAlign = 'left';
  context.fillText('keys', width - side, 12);
  lineHits = { side, right: width - side, y, part, cells, width };
  let hidden = 1;
  const chosen = { query: state.axis === 'query' ? state.token : null, key: state.axis === 'key' ? state.token : null };
  if (state.hover) Object.assign(chosen, { query: state.hover.query, key: state.hover.key });
  const isChosen = (i, j) => (chosen.query === null || chosen.query === i) && (chosen.key === null || chosen.key === j);
  const strongest = cells ? range().end : 1;
  cells?.forEach((weight, at) => {
    const i = Math.floor(at / keys), j = at % keys, mine = isChosen(query + i, key + j);
    const strength = state.scale === 'log' ? place(weight) / 255 : Math.min(weight / strongest, 1);
    if (!(strength >= FAINTEST)) return;
    if (mine) hidden -= weight;
    const [from, to, bend] = [side + 6, width - side - 6, (width - 2 * side) * CURVE];
    context.globalAlpha = strength * (mine ? 1 : 0.22);
    context.strokeStyle = themeColour(mine ? '--accent' : '--ink');
    context.lineWidth = 1 + 2 * strength;
    context.beginPath();
    context.moveTo(from, y(i));
    context.bezierCurveTo(from + bend, y(i), to - bend, y(j), to, y(j));
    context.stroke();
  });
  context.globalAlpha = 1;
  for (const [axis, first, span] of [['query', query, queries], ['key', key, keys]]) {
    context.textAlign = axis === 'query' ? 'right' : 'left';
    for (let i = 0; i < span; ++i) {
      const mine = chosen[axis] === first + i;
      context.font = (mine ? 'bold ' : '') + FONT;
      context.fillStyle = themeColour(mine ? '--accent' : '--ink');
      const text = `${first + i} ${visible(tokens[axis][first + i], 18)}`;
      context.fillText(text, axis === 'query' ? side : width - side, y(i), side - 4);
    }
  }
  const row = chosen.query !== null && chosen.key === null && queries + keys < count.query + count.key;
  byId('lines-note').textContent = `Queries ${query}\u2013${query + queries - 1}, keys ${key}\u2013${key + keys - 1}.` +
    (row ? ` Of query ${chosen.query}, ${Math.max(hidden, 0).toPrecision(2)} of the weight is elsewhere` +
      `${cells?.some(Number.isNaN) ? ' or not known' : ''}.` : '');
}

let lineHits = null;

/** The token of a column under the pointer: { axis, t }, or null. */
function underLines(event) {
  if (!lineHits) return null;
  const { side, right, y, part } = lineHits;
  const axis = event.offsetX <= side ? 'query' : event.offsetX >= right ? 'key' : null;
  if (!axis) return null;
  const place = Math.floor((event.offsetY - y(0)) / STEP + 0.5);
  return inside(place, part.spans[axis]) ? { axis, t: part[axis] + place } : null;
}

byId('lines').addEventListener('mousemove', event => {
  const token = underLines(event);
  hover(token && { query: null, key: null, [token.axis]: token.t }, event);
});
byId('lines').addEventListener('mouseleave', () => hover(null));
byId('lines').addEventListener('click', event => {
  const token = underLines(event);
  if (token) change({ axis: token.axis, token: token.t });
});

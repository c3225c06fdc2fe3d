// --------------------------------------------------------------------------------------------------------------- lines
// Two columns of tokens, and a line from each query to each key that is as strong as the weight.

const LISTED = 48;       // tokens of a column, at most
const STEP = 20;         // CSS pixels from one to the next
const FAINTEST = 0.004;  // of a line that can be seen
const CURVE = 0.45;      // of the width: where a line has turned

/** What is listed of both axes, as tokens in order, and the weights between them [queries, keys]; null = not yet. Of
 *  more tokens than there is room for, the far column has those that the chosen one has most to do with. */
function listed() {
  const far = across[state.axis], lists = {};
  const all = axis => Array.from({ length: sight.spans[axis] }, (_, i) => sight[axis] + i);
  if (sight.spans[far] <= LISTED && sight.spans[state.axis] <= LISTED) {
    const cells = shown.source.picture(sight, sight.spans.query, sight.spans.key);
    return { query: all('query'), key: all('key'), cells };
  }
  const line = shown.source.line(state.axis, state.token);
  lists[state.axis] = [state.token];
  lists[far] = line ? ranked(line, LISTED / 2).best.sort((a, b) => a - b) : [];
  return { ...lists, cells: line && Float32Array.from(lists[far], t => line[t]) };
}

function drawLines() {
  const { cells, ...lists } = listed(), { query, key } = lists;
  const width = Math.max(Math.min(byId('lines').parentElement.clientWidth - 8, 900), 320), side = width * 0.27;
  const context = fit(byId('lines'), width, Math.max(query.length, key.length) * STEP + 34);
  const y = i => 34 + (i + 0.5) * STEP;
  context.font = '11px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
  context.fillStyle = themeColour('--muted');
  context.textAlign = 'right';
  context.fillText('queries', side, 12);
  context.textAlign = 'left';
  context.fillText('keys', width - side, 12);
  lineHits = { side, right: width - side, y, lists };
  const chosen = { query: null, key: null, [state.axis]: state.token };
  if (state.hover) Object.assign(chosen, { query: state.hover.query, key: state.hover.key });
  cells?.forEach((weight, at) => {
    const i = Math.floor(at / key.length), j = at % key.length;
    const strength = state.scale === 'log' ? place(weight) / 255 : Math.min(weight / range().end, 1);
    if (!(strength >= FAINTEST)) return;
    const mine = (chosen.query === null || chosen.query === query[i]) && (chosen.key === null || chosen.key === key[j]);
    const from = side + 6, to = width - side - 6, bend = (width - 2 * side) * CURVE;
    context.globalAlpha = strength * (mine ? 1 : 0.22);
    context.strokeStyle = themeColour(mine ? '--accent' : '--ink');
    context.lineWidth = 1 + 2 * strength;
    context.beginPath();
    context.moveTo(from, y(i));
    context.bezierCurveTo(from + bend, y(i), to - bend, y(j), to, y(j));
    context.stroke();
  });
  context.globalAlpha = 1;
  for (const axis of ['query', 'key']) {
    context.textAlign = axis === 'query' ? 'right' : 'left';
    lists[axis].forEach((t, i) => {
      const mine = chosen[axis] === t;
      context.font = (mine ? 'bold ' : '') + FONT;
      context.fillStyle = themeColour(mine ? '--accent' : '--ink');
      const text = `${t} ${visible(tokens[axis][t], 18)}`;
      context.fillText(text, axis === 'query' ? side : width - side, y(i), side - 4);
    });
  }
  byId('lines-note').textContent = linesNote(lists, cells);
}

function linesNote(lists, cells) {
  const far = across[state.axis];
  if (!cells) return '';
  if (lists[state.axis].length > 1 || lists[far].length === count[far])
    return lists.query.length < count.query || lists.key.length < count.key ? 'The part in sight of the matrix.' : '';
  const sum = cells.reduce((all, weight) => all + weight, 0);
  return `The ${far === 'key' ? 'keys' : 'queries'} that ${state.axis} ${state.token} has most to do with: ` +
    `${sum.toPrecision(3)} of ${state.axis === 'query' ? 'its weight' : 'weight on it'}. ` +
    `Zoomed in to ${LISTED} tokens, all lines are drawn.`;
}

let lineHits = null;

/** The token of a column under the pointer: { axis, t }, or null. */
function underLines(event) {
  if (!lineHits) return null;
  const { side, right, y, lists } = lineHits;
  const axis = event.offsetX <= side ? 'query' : event.offsetX >= right ? 'key' : null;
  if (!axis) return null;
  const place = Math.floor((event.offsetY - y(0)) / STEP + 0.5);
  return inside(place, lists[axis].length) ? { axis, t: lists[axis][place] } : null;
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

// --------------------------------------------------------------------------------------------------------------- lines
// Two columns of tokens, and a line from each query to each key, in the colour of its head and as strong as the weight.

const LISTED = 48;       // tokens of a column, at most
const STEP = 20;         // CSS pixels from one to the next
const FAINTEST = 0.008;  // of the scale: what is less has no line
const CURVE = 0.45;      // of the width: where a line has turned

// -- which heads: the open one, or several of its layer in colours of their own

/** Okabe and Ito's, which those who do not see all colours can tell apart, and grey; the squares have numbers, too. */
const HEAD_COLOURS = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#8a8f3c', '#8c8c8c'];
const headColour = h =>
  (layers[state.layer].heads[h].name === 'mean' ? themeColour('--ink') : HEAD_COLOURS[h % HEAD_COLOURS.length]);

/** Of two texts in one, which of them looks at which. */
const BETWEEN = [['all', 'All'], ...['AA', 'AB', 'BA', 'BB'].map(([from, to]) => [from + to, `${from} \u2192 ${to}`])];
const textOf = t => (t < data.second ? 'A' : 'B');
const isBetween = (query, key) =>
  data.second === undefined || state.between === 'all' || state.between === textOf(query) + textOf(key);

/** How opaque a line is: a small weight is visible, a large one prominent, and those of other tokens are faint. */
const opacity = (strength, mine) => (mine ? 0.3 + 0.7 * Math.sqrt(strength) : 0.18 + 0.4 * strength);

const together = { layer: -1, sources: new Map() };  // heads of a layer that are drawn beside the open one: its source

/** The places of the heads that are drawn, the open one alone where none are chosen. */
const drawnHeads = () => (state.heads.length ? state.heads : [state.head]);

/** The source of one of these heads, which begins to compute or to ask when it is first wanted. */
function sourceOf(h) {
  together.layer = state.layer;
  if (h === state.head) return shown.source;
  if (!together.sources.has(h)) {
    const source = new kinds[data.kind].Head(layers[state.layer], layers[state.layer].heads[h], () => {
      if (together.sources.get(h) === source && isOpen() && state.view === 'lines') drawView();
    });
    together.sources.set(h, source);
  }
  return together.sources.get(h);
}

/** Lets go of the heads that are not drawn any more. */
function leaveTogether() {
  const drawn = together.layer === state.layer && state.view === 'lines' ? drawnHeads() : [];
  for (const [h, source] of together.sources) {
    if (h !== state.head && drawn.includes(h)) continue;
    source.isLeft = true;
    together.sources.delete(h);
  }
}

const isTogetherBusy = () => [...together.sources.values()].some(source => source.busy);

/** Squares that show and hide a head. They stay the same buttons while they show the same: one that is being pressed as
 *  weights arrive is not taken away. */
function drawHeadSquares() {
  const box = byId('line-heads'), shows = `${state.layer}: ${drawnHeads()}`;
  if (box.dataset.shows === shows) return;
  box.dataset.shows = shows;
  const { heads } = layers[state.layer], single = heads.map((_, h) => h).filter(h => heads[h].name !== 'mean');
  const most = kinds[data.kind].mostHeads, drawn = drawnHeads();
  const square = (text, isOn, colour, label, act) => {
    const button = element('button', 'square', text);
    button.style.background = isOn ? colour : '';
    button.setAttribute('aria-pressed', isOn);
    button.setAttribute('aria-label', label);
    button.addEventListener('click', act);
    return button;
  };
  const toggled = h => (drawn.includes(h) ? drawn.filter(other => other !== h) : [...drawn, h])
    .filter(other => single.includes(other)).slice(-most).sort((a, b) => a - b);
  const squares = single.map(h => square(heads[h].name, drawn.includes(h), headColour(h), headName(state.layer, h),
                                         () => change({ heads: toggled(h) })));
  const every = single.slice(0, most), isAll = every.every(h => drawn.includes(h));
  squares.push(square('all', isAll, 'var(--muted)', 'All heads of the layer',
                      () => change({ heads: isAll ? [] : every })));
  const focus = [...box.children].indexOf(document.activeElement);
  box.hidden = Math.min(single.length, most) < 2;
  box.replaceChildren(...squares);
  box.children[focus]?.focus();
}

// -- what they draw

/** What is listed of both axes, as tokens in order, and of each source the weights between them [queries, keys], null
 *  where they are not there yet. Of more tokens than there is room for, the far column has those that the chosen one
 *  has most to do with. */
function listed(sources) {
  const far = across[state.axis], lists = {};
  const all = axis => Array.from({ length: sight.spans[axis] }, (_, i) => sight[axis] + i);
  if (sight.spans[far] <= LISTED && sight.spans[state.axis] <= LISTED) {
    const { query, key } = sight.spans;
    const cells = sources.map(source => (source.ready ? source.picture(sight, query, key) : null));
    return { query: all('query'), key: all('key'), cells };
  }
  const wanted = (weight, t) =>
    ((state.axis === 'query' ? isBetween(state.token, t) : isBetween(t, state.token)) ? weight : 0);
  const lines = sources.map(source => (source.ready ? source.line(state.axis, state.token)?.map(wanted) : null));
  const there = lines.filter(line => line);
  lists[state.axis] = [state.token];
  lists[far] = there.length ? ranked(largestOf(there), LISTED / 2).best.sort((a, b) => a - b) : [];
  return { ...lists, cells: lines.map(line => line && Float32Array.from(lists[far], t => line[t])) };
}

/** The largest of several lines, place by place; NaN where none is known. */
function largestOf(lines) {
  if (lines.length === 1) return lines[0];
  const larger = (a, b) => (b > a || Number.isNaN(a) ? b : a);
  return lines[0].map((_, t) => lines.reduce((most, line) => larger(most, line[t]), NaN));
}

function drawLines() {
  drawHeadSquares();
  leaveTogether();
  const heads = drawnHeads(), sources = heads.map(sourceOf);
  const { cells, ...lists } = listed(sources), { query, key } = lists;
  const width = Math.max(Math.min(byId('lines').parentElement.clientWidth - 8, 900), 300), side = width * 0.3;
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
  const from = side + 6, to = width - side - 6, bend = (width - 2 * side) * CURVE;
  const ends = { end: Math.max(...heads.map(h => layers[state.layer].heads[h].end)) };  // one scale for all
  const apart = Math.min(4, (STEP - 6) / heads.length);  // lines of several heads run side by side
  cells.forEach((of, n) => of?.forEach((weight, at) => {
    const i = Math.floor(at / key.length), j = at % key.length, shift = (n - (heads.length - 1) / 2) * apart;
    const strength = position(weight, ends);
    if (!(strength >= FAINTEST) || !isBetween(query[i], key[j])) return;
    const mine = (chosen.query === null || chosen.query === query[i]) && (chosen.key === null || chosen.key === key[j]);
    context.globalAlpha = opacity(strength, mine);
    context.strokeStyle = headColour(heads[n]);
    context.lineWidth = Math.min(1 + 2 * strength, Math.max(apart - 0.5, 1));
    context.beginPath();
    context.moveTo(from, y(i) + shift);
    context.bezierCurveTo(from + bend, y(i) + shift, to - bend, y(j) + shift, to, y(j) + shift);
    context.stroke();
  }));
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
  for (const [axis, x] of data.second === undefined ? [] : [['query', 0], ['key', width - side]]) {
    const first = lists[axis].findIndex(t => t >= data.second), edge = axis === 'query' ? 0 : width - 12;
    context.fillStyle = themeColour('--muted');
    context.font = 'bold ' + FONT;
    context.textAlign = 'left';
    if (first !== 0) context.fillText('A', edge, y(0));
    if (first >= 0) context.fillText('B', edge, y(first));
    if (first > 0) context.fillRect(x, Math.round(y(first) - STEP / 2), side, 1);
  }
  byId('between').hidden = data.second === undefined;
  betweenSwitch(state.between);
  byId('lines-note').textContent = linesNote(lists, cells.length === 1 ? cells[0] : null, cells.some(of => of));
}

/** `cells`: the weights of the one head that is drawn, null of several. */
function linesNote(lists, cells, isThere) {
  const far = across[state.axis];
  if (!isThere) return '';
  if (lists[state.axis].length > 1 || lists[far].length === count[far])
    return lists.query.length < count.query || lists.key.length < count.key ? 'The part in sight of the matrix.' : '';
  const sum = cells?.reduce((all, weight) => all + weight, 0).toPrecision(3);
  const share = cells ? `: ${sum} of ${state.axis === 'query' ? 'its weight' : 'weight on it'}` : '';
  return `The ${far === 'key' ? 'keys' : 'queries'} that ${state.axis} ${state.token} has most to do with${share}. ` +
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
  byId('lines').style.cursor = token ? 'pointer' : '';
  hover(token && { query: null, key: null, [token.axis]: token.t }, event);
});
byId('lines').addEventListener('mouseleave', () => hover(null));
byId('lines').addEventListener('click', event => {
  const token = underLines(event);
  if (token) change({ axis: token.axis, token: token.t });
});

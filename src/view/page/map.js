// ----------------------------------------------------------------------------------------------------------------- map
// Labels of queries on the left, labels of keys on top at 45 degrees, and the weights of a square part of the matrix.

const FONT = '12px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
const LONGEST = 130;                         // CSS pixels of a label; a longer one is squeezed
const APART = { query: 15, key: 21 };        // CSS pixels along the axis between labels that do not touch
const SCROLLED = 1.25;                       // times the room may be needed before tokens share pixels
const FEWEST = Math.min(n, 8);               // tokens in sight
const sight = { query: 0, key: 0, span: n }; // the part in sight
let plot = null;                             // { left, top, cell, group, side, width, height }

/** Puts the part in sight where it was asked to be, inside the matrix. */
function look(query, key, span) {
  sight.span = Math.min(Math.max(Math.round(span), FEWEST), n);
  sight.query = Math.min(Math.max(Math.round(query), 0), n - sight.span);
  sight.key = Math.min(Math.max(Math.round(key), 0), n - sight.span);
}

/** Cells of whole pixels: `cell` CSS pixels a token, and `group` tokens a pixel where there are more tokens. */
function measure() {
  const context = byId('map').getContext('2d');
  context.font = 'bold ' + FONT;
  let longest = 0;
  for (let t = 0; t < sight.span; ++t) {
    longest = Math.max(longest, context.measureText(axisWords[sight.query + t]).width,
                       context.measureText(axisWords[sight.key + t]).width);
  }
  longest = Math.min(longest, LONGEST);
  const left = Math.max(Math.ceil(longest), 56) + 20, slanted = Math.max(Math.ceil(longest * Math.SQRT1_2), 20);
  const ratio = devicePixelRatio || 1;
  const room = Math.max(byId('plot').clientWidth - left - slanted - 12, 160);
  const high = Math.max(innerHeight - 190 - slanted, 420);  // where the weights fit the window, they do
  const group = Math.ceil(sight.span / (SCROLLED * room * ratio));
  const pixels = Math.max(Math.floor(Math.min(room, high) * ratio / sight.span), 1);
  const cell = group > 1 ? 1 / (group * ratio) : Math.min(pixels / ratio, 56);
  const side = Math.ceil(sight.span / group) * group * cell, top = slanted + 16;
  return { left, top, cell, group, side, width: left + side + slanted + 12, height: top + side + 8 };
}

/** A canvas of this CSS size, sharp on dense screens; returns its context. */
function fit(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  context.direction = 'ltr';
  context.textBaseline = 'middle';
  return context;
}

/** Where a query or a key begins along its axis, in CSS pixels from the first in sight. */
const along = (axis, t) => (t - sight[axis]) * plot.cell;
const inSight = (axis, t) => t >= sight[axis] && t < sight[axis] + sight.span;

/** The label of a query or a key, on a patch of `ground` if one is given. */
function drawLabel(context, axis, t, patch) {
  const { left, top, cell } = plot;
  const isQuery = axis === 'query', middle = along(axis, t) + cell / 2, ink = context.fillStyle;
  const length = Math.min(context.measureText(axisWords[t]).width, LONGEST);
  context.save();
  context.translate(isQuery ? left - 10 : left + middle + 2, isQuery ? top + middle : top - 8);
  if (!isQuery) context.rotate(-Math.PI / 4);
  context.textAlign = isQuery ? 'right' : 'left';
  if (patch) {
    context.fillStyle = patch;
    context.fillRect(isQuery ? -length - 4 : 0, -8, length + 4, 16);
    context.fillStyle = ink;
  }
  context.fillText(axisWords[t], 0, 0, LONGEST);
  context.restore();
}

/** Labels so far apart that none touches another. The chosen token has one, and those beside it give way. */
function drawLabels(context) {
  const round = least => [1, 2, 5].map(step => step * 10 ** Math.max(Math.ceil(Math.log10(least / step)), 0))
    .sort((a, b) => a - b)[0];
  for (const axis of ['query', 'key']) {
    const step = round(APART[axis] / plot.cell), first = Math.ceil(sight[axis] / step) * step;
    const chosen = state.axis === axis && inSight(axis, state.token) ? state.token : null;
    context.font = FONT;
    context.fillStyle = themeColour('--muted');
    for (let t = first; inSight(axis, t); t += step) {
      if (chosen === null || Math.abs(t - chosen) * plot.cell >= APART[axis]) drawLabel(context, axis, t);
    }
    if (chosen === null) continue;
    context.font = 'bold ' + FONT;
    context.fillStyle = themeColour('--accent');
    drawLabel(context, axis, chosen);
  }
}

function drawMap() {
  if (!shown.matrix) return;
  plot = measure();
  const { left, top, cell, group, side, width, height } = plot;
  const context = fit(byId('map'), width, height);
  byId('map').setAttribute('aria-label', `Weights of ${headName(state.layer, state.head)}`);
  drawLabels(context);
  context.font = '11px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
  context.fillStyle = themeColour('--muted');
  context.textAlign = 'right';
  context.fillText('keys \u2192', left - 10, top - 28, left - 14);
  context.fillText('queries \u2193', left - 10, top - 14, left - 14);
  if (cell < 12) {
    const small = document.createElement('canvas');
    paint(small, partInSight(group));
    context.imageSmoothingEnabled = false;
    context.drawImage(small, left, top, side, side);
  } else {
    drawCells(context);
  }
  context.strokeStyle = themeColour('--line');
  context.strokeRect(left - 0.5, top - 0.5, side + 1, side + 1);
  const part = sight.span < n ? `queries ${sight.query}\u2013${sight.query + sight.span - 1}, keys ${sight.key}\u2013` +
    `${sight.key + sight.span - 1}. ` : '';
  byId('part').textContent = part + (group > 1 ? `A pixel shows the largest of ${group} \u00d7 ${group} weights.` : '');
  byId('whole').disabled = byId('out').disabled = sight.span === n;
  byId('in').disabled = sight.span === FEWEST;
  byId('plot').classList.toggle('part', sight.span < n);
  drawMarks();
}

/** The part in sight, the largest of group x group weights a pixel. */
function partInSight(group) {
  const { query, key, span } = sight, side = Math.ceil(span / group), largest = new Float32Array(side * side);
  for (let i = 0; i < span; ++i) {
    const row = (query + i) * n + key, to = Math.floor(i / group) * side;
    for (let j = 0; j < span; ++j) {
      const at = to + Math.floor(j / group);
      if (shown.matrix[row + j] > largest[at]) largest[at] = shown.matrix[row + j];
    }
  }
  return largest;
}

/** Large cells one by one, with a thin gap, and with two digits where these fit. */
function drawCells(context) {
  const { left, top, cell } = plot, { query, key, span } = sight;
  context.font = '11px ui-monospace, "DejaVu Sans Mono", monospace';
  context.textAlign = 'center';
  for (let i = 0; i < span * span; ++i) {
    const weight = shown.matrix[(query + Math.floor(i / span)) * n + key + i % span];
    if (weight === 0) continue;
    const x = left + (i % span) * cell, y = top + Math.floor(i / span) * cell;
    context.fillStyle = ground(weight);
    context.fillRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
    if (cell < 34) continue;
    context.fillStyle = ink(weight);
    context.fillText(weight < 0.005 ? '<.01' : weight.toFixed(2).replace(/^0/, ''), x + cell / 2, y + cell / 2 + 1);
  }
}

/** The chosen row or column, and the cell under the pointer with both of its labels. */
function drawMarks() {
  const { left, top, side, width, height } = plot, cell = Math.max(plot.cell, 1);
  const context = fit(byId('marks'), width, height);
  const line = (axis, t, extra) => {
    if (t === null || !inSight(axis, t)) return;
    const at = along(axis, t) - extra;
    if (axis === 'query') context.strokeRect(left - extra, top + at, side + 2 * extra, cell + 2 * extra);
    else context.strokeRect(left + at, top - extra, cell + 2 * extra, side + 2 * extra);
  };
  context.strokeStyle = context.fillStyle = themeColour('--accent');
  context.font = 'bold ' + FONT;
  context.lineWidth = 2;
  line(state.axis, state.token, 1);
  if (!state.hover) return;
  const { query, key } = state.hover;
  context.globalAlpha = 0.75;
  context.lineWidth = 1;
  line('query', query, 0.5);
  line('key', key, 0.5);
  context.globalAlpha = 1;
  context.lineWidth = 2;
  if (query !== null && key !== null && inSight('query', query) && inSight('key', key))
    context.strokeRect(left + along('key', key) - 1, top + along('query', query) - 1, cell + 2, cell + 2);
  for (const [axis, t] of Object.entries({ query, key }))
    if (t !== null && inSight(axis, t)) drawLabel(context, axis, t, themeColour('--ground'));
}

/** What lies under the pointer: a cell, a label of a query (no key) or a label of a key (no query). */
function underPointer(event) {
  if (!plot || !shown.matrix) return null;
  const x = event.offsetX - plot.left, y = event.offsetY - plot.top;
  const at = (axis, offset) => {
    const t = Math.floor(offset / plot.cell + 1e-6);
    return inside(t, sight.span) ? sight[axis] + t : null;
  };
  if (y < 0) {
    const key = at('key', x + y);  // along the slant of the labels
    return key === null ? null : { query: null, key };
  }
  const query = at('query', y), key = at('key', x);
  if (query === null || x >= 0 && key === null) return null;
  return key === null ? { query, key } : largestNear(query, key);
}

/** Where a pixel is of several pairs, the one that it shows. */
function largestNear(query, key) {
  const { group } = plot, begin = (axis, t) => t - (t - sight[axis]) % group;
  const first = { query: begin('query', query), key: begin('key', key) };
  let best = { ...first };
  for (let i = first.query; i < Math.min(first.query + group, n); ++i) {
    for (let j = first.key; j < Math.min(first.key + group, n); ++j)
      if (shown.matrix[i * n + j] > shown.matrix[best.query * n + best.key]) best = { query: i, key: j };
  }
  return best;
}

/** `factor` times as many tokens in sight; what lies at `x` and `y`, parts of the side, stays there. */
function zoom(factor, x, y) {
  const { query, key, span } = sight, inPicture = part => Math.min(Math.max(part, 0), 1);
  const wanted = Math.min(Math.max(Math.round(span * factor), FEWEST), n);
  look(query + (span - wanted) * inPicture(y), key + (span - wanted) * inPicture(x), wanted);
  drawMap();
}

/** Zooms at the chosen token and the one that it has most to do with. */
function zoomAtChosen(factor) {
  if (!isOpen() || !shown.matrix) return;
  let other = 0;
  for (let t = 1; t < n; ++t) if (weightOf(t) > weightOf(other)) other = t;
  const [query, key] = state.axis === 'query' ? [state.token, other] : [other, state.token];
  zoom(factor, (key + 0.5 - sight.key) / sight.span, (query + 0.5 - sight.query) / sight.span);
}


// ----------------------------------------------------------------------------------------------------------------- map
// Labels of queries on the left, labels of keys on top at 45 degrees, and the weights of a part of the matrix.

const FONT = '12px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
const LONGEST = 130;                         // CSS pixels of a label; a longer one is squeezed
const APART = { query: 15, key: 21 };        // CSS pixels along the axis between labels that do not touch
const LARGEST = 160;                         // CSS pixels of a cell
const WHOLE = 8;                             // device pixels of a cell that has no broken ones
const STRETCH = 4;                           // of an axis so many times shorter than the other, cells may be longer
const FEWEST = { query: Math.min(count.query, 8), key: Math.min(count.key, 8) };   // tokens in sight
const sight = { query: 0, key: 0, spans: { ...count } };                           // the part in sight
let plot = null;  // { left, top, width, height, cells: what is drawn or null; and by axis cell, side, bands }

const isWhole = () => sight.spans.query === count.query && sight.spans.key === count.key;

/** Puts the part in sight where it was asked to be, inside the matrix. */
function look(query, key, spans) {
  for (const [axis, first] of Object.entries({ query, key })) {
    sight.spans[axis] = Math.min(Math.max(Math.round(spans[axis]), FEWEST[axis]), count[axis]);
    sight[axis] = Math.min(Math.max(Math.round(first), 0), count[axis] - sight.spans[axis]);
  }
}

/** The longest label in sight; of very many not all are measured. */
function longestLabel(context) {
  let longest = 0;
  for (const axis of ['query', 'key']) {
    if (sight.spans[axis] > 2000) return labelRoom();
    for (let t = sight[axis]; t < sight[axis] + sight.spans[axis]; ++t)
      longest = Math.max(longest, context.measureText(axisWord(axis, t)).width);
  }
  return Math.min(longest, labelRoom());
}

/** CSS pixels of a label: less where the pane is narrow. */
const labelRoom = () => Math.min(LONGEST, Math.max(byId('plot').clientWidth / 6, 44));

/** The room and what fills it: `cell` CSS pixels a token, whole ones where they are large; where there are more tokens
 *  than pixels, a band of tokens a pixel. */
function measure() {
  const context = byId('map').getContext('2d');
  context.font = 'bold ' + FONT;
  const longest = longestLabel(context);
  const left = Math.max(Math.ceil(longest), 50) + 16, slanted = Math.max(Math.ceil(longest * Math.SQRT1_2), 20);
  const ratio = devicePixelRatio || 1, { spans } = sight;
  const room = Math.max(byId('plot').clientWidth - left - slanted - 12, 120);
  const high = Math.max(innerHeight - 130 - slanted, 420);  // where the weights fit the window, they do
  const fits = { query: Math.min(room, high) * ratio / spans.query, key: room * ratio / spans.key };
  const square = Math.min(fits.query, fits.key, LARGEST * ratio);
  const uneven = Math.max(spans.query, spans.key) > STRETCH * Math.min(spans.query, spans.key);
  const sizes = { cell: {}, side: {}, bands: {} };
  for (const axis of ['query', 'key']) {
    const pixels = uneven ? Math.max(square, Math.min(fits[axis], 14 * ratio)) : square;
    const side = Math.max(Math.floor(spans[axis] * (pixels < WHOLE ? pixels : Math.floor(pixels)) + 1e-6), 1);
    sizes.bands[axis] = Math.min(spans[axis], side);
    sizes.side[axis] = side / ratio;
    sizes.cell[axis] = sizes.side[axis] / spans[axis];
  }
  const top = slanted + 16;
  return { left, top, ...sizes, width: left + sizes.side.key + slanted + 12, height: top + sizes.side.query + 8 };
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
const along = (axis, t) => (t - sight[axis]) * plot.cell[axis];
const inSight = (axis, t) => t >= sight[axis] && t < sight[axis] + sight.spans[axis];

/** The label of a query or a key, on a patch of `ground` if one is given. */
function drawLabel(context, axis, t, patch) {
  const { left, top } = plot, text = axisWord(axis, t);
  const isQuery = axis === 'query', middle = along(axis, t) + plot.cell[axis] / 2, ink = context.fillStyle;
  const length = Math.min(context.measureText(text).width, labelRoom());
  context.save();
  context.translate(isQuery ? left - 10 : left + middle + 2, isQuery ? top + middle : top - 8);
  if (!isQuery) context.rotate(-Math.PI / 4);
  context.textAlign = isQuery ? 'right' : 'left';
  if (patch) {
    context.fillStyle = patch;
    context.fillRect(isQuery ? -length - 4 : 0, -8, length + 4, 16);
    context.fillStyle = ink;
  }
  context.fillText(text, 0, 0, labelRoom());
  context.restore();
}

/** Tokens of an axis whose labels do not touch: the chosen one is among them, and those beside it give way. */
function labelled(axis) {
  const least = APART[axis] / plot.cell[axis];
  const step = [1, 2, 5].map(step => step * 10 ** Math.max(Math.ceil(Math.log10(least / step)), 0))
    .sort((a, b) => a - b)[0];
  const chosen = state.axis === axis && inSight(axis, state.token) ? state.token : null, list = [];
  for (let t = Math.ceil(sight[axis] / step) * step; inSight(axis, t); t += step)
    if (chosen === null || Math.abs(t - chosen) * plot.cell[axis] >= APART[axis]) list.push(t);
  return { list, chosen };
}

function drawLabels(context) {
  for (const axis of ['query', 'key']) {
    const { list, chosen } = labelled(axis);
    context.font = FONT;
    context.fillStyle = themeColour('--muted');
    for (const t of list) drawLabel(context, axis, t);
    if (chosen === null) continue;
    context.font = 'bold ' + FONT;
    context.fillStyle = themeColour('--accent');
    drawLabel(context, axis, chosen);
  }
}

function drawMap() {
  if (!shown.source?.ready) return;
  plot = measure();
  const { left, top, cell, side, bands, width, height } = plot;
  const context = fit(byId('map'), width, height);
  byId('map').setAttribute('aria-label', `Weights of ${headName(state.layer, state.head)}`);
  drawLabels(context);
  context.font = '11px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
  context.fillStyle = themeColour('--muted');
  context.textAlign = 'right';
  context.fillText('keys \u2192', left - 10, top - 28, left - 14);
  context.fillText('queries \u2193', left - 10, top - 14, left - 14);
  plot.cells = shown.source.picture(sight, bands.query, bands.key);
  plot.isMean = Boolean(shown.source.isMean?.(sight, bands.query, bands.key));
  plot.scale = plot.isMean ? current().mean : current();
  drawLegend(plot.scale);
  const isPartly = plot.cells?.some(Number.isNaN);
  if (isPartly) {
    context.fillStyle = hatch(context);
    context.fillRect(left, top, side.key, side.query);
  }
  if (plot.cells && Math.min(cell.query, cell.key) < 12) {
    const small = document.createElement('canvas');
    paint(small, plot.cells, bands.query, bands.key, plot.scale);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, left, top, side.key, side.query);
  } else if (plot.cells) {
    drawCells(context);
  }
  context.strokeStyle = themeColour('--line');
  context.strokeRect(left - 0.5, top - 0.5, side.key + 1, side.query + 1);
  outlineWindows(context);
  drawBoundary(context);
  const { query, key, spans } = sight;
  const part = isWhole() ? '' : `queries ${query}\u2013${query + spans.query - 1}, keys ${key}\u2013${
    key + spans.key - 1}. `;
  byId('part').textContent = part + shown.source.note(sight, bands.query, bands.key);
  byId('whole').disabled = byId('out').disabled = isWhole();
  byId('in').disabled = spans.query === FEWEST.query && spans.key === FEWEST.key;
  byId('plot').classList.toggle('part', !isWhole());
  drawMarks();
}

/** Where a pooled page has every weight. */
function outlineWindows(context) {
  const { left, top, side } = plot;
  context.save();
  context.beginPath();
  context.rect(left, top, side.key, side.query);
  context.clip();
  context.strokeStyle = themeColour('--accent');
  context.setLineDash([4, 3]);
  for (const { query, key, spans } of shown.source.outlined ?? [])
    context.strokeRect(left + along('key', key) - 1, top + along('query', query) - 1,
                       spans.key * plot.cell.key + 2, spans.query * plot.cell.query + 2);
  context.restore();
}

/** Of two texts in one, where the second begins. */
function drawBoundary(context) {
  const { left, top, side } = plot;
  if (data.second === undefined) return;
  context.strokeStyle = themeColour('--muted');
  context.setLineDash([2, 3]);
  context.beginPath();
  if (inSight('query', data.second)) {
    context.moveTo(left - 8, top + along('query', data.second));
    context.lineTo(left + side.key, top + along('query', data.second));
  }
  if (inSight('key', data.second)) {
    context.moveTo(left + along('key', data.second), top - 8);
    context.lineTo(left + along('key', data.second), top + side.query);
  }
  context.stroke();
  context.setLineDash([]);
}

/** Large cells one by one, with a thin gap, and with two digits where these fit. */
function drawCells(context) {
  const { left, top, cell, bands, scale } = plot;
  const size = Math.round(Math.min(Math.max(cell.key / 4, 11), 18));
  context.font = `${size}px ui-monospace, "DejaVu Sans Mono", monospace`;
  context.textAlign = 'center';
  plot.cells.forEach((weight, i) => {
    if (Number.isNaN(weight)) return;
    const x = left + (i % bands.key) * cell.key, y = top + Math.floor(i / bands.key) * cell.query;
    context.fillStyle = ground(weight, scale);
    context.fillRect(x + 0.5, y + 0.5, cell.key - 1, cell.query - 1);
    if (cell.key < 34 || weight === 0) return;
    context.fillStyle = ink(weight, scale);
    context.fillText(twoDigits(weight), x + cell.key / 2, y + cell.query / 2 + 1);
  });
}
const twoDigits = weight => (weight < 0.005 ? '<.01' : weight.toFixed(2).replace(/^0/, ''));

/** The chosen row or column, and the cell under the pointer with both of its labels. */
function drawMarks() {
  const { left, top, side, width, height } = plot;
  const cell = { query: Math.max(plot.cell.query, 1), key: Math.max(plot.cell.key, 1) };
  const context = fit(byId('marks'), width, height);
  const line = (axis, t, extra) => {
    if (t === null || !inSight(axis, t)) return;
    const at = along(axis, t) - extra, thick = cell[axis] + 2 * extra;
    if (axis === 'query') context.strokeRect(left - extra, top + at, side.key + 2 * extra, thick);
    else context.strokeRect(left + at, top - extra, thick, side.query + 2 * extra);
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
    context.strokeRect(left + along('key', key) - 1, top + along('query', query) - 1, cell.key + 2, cell.query + 2);
  for (const [axis, t] of Object.entries({ query, key }))
    if (t !== null && inSight(axis, t)) drawLabel(context, axis, t, themeColour('--ground'));
}

/** The object under the pointer: a cell, a label of a query (no key) or a label of a key (no query). */
function underPointer(event) {
  if (!plot?.cells) return null;
  const half = 0.5 / (devicePixelRatio || 1);  // a pixel shows what is at its middle
  const x = event.offsetX - plot.left + half, y = event.offsetY - plot.top + half;
  const at = (axis, offset, steps) => {
    const place = Math.floor(offset / plot.side[axis] * steps);
    return inside(place, steps) ? place : null;
  };
  const token = (axis, offset) => {
    const place = at(axis, offset, sight.spans[axis]);
    return place === null ? null : sight[axis] + place;
  };
  if (y < 0) {
    const key = token('key', x + y);  // along the slant of the labels
    return key === null ? null : { query: null, key };
  }
  const row = at('query', y, plot.bands.query), column = at('key', x, plot.bands.key);
  if (row === null || x >= 0 && column === null) return null;
  return column === null ? { query: token('query', y), key: null } : pairAt(row, column);
}

/** The pair of tokens of a cell, and its weight; where it is of several, the one that it shows, or else all of them. */
function pairAt(row, column) {
  const weight = plot.cells[row * plot.bands.key + column];
  const [top, bottom] = bandOf(row, plot.bands.query, sight.spans.query);
  const [left, right] = bandOf(column, plot.bands.key, sight.spans.key);
  const part = { query: sight.query + top, key: sight.key + left, spans: { query: bottom - top, key: right - left } };
  if (part.spans.query === 1 && part.spans.key === 1) return { query: part.query, key: part.key, weight };
  return shown.source.largest(part, weight) ?? { query: part.query, key: part.key, weight, spans: part.spans };
}

/** `factor` times as many tokens in sight; the point at `x` and `y`, parts of the sides, does not move. */
function zoom(factor, x, y) {
  const inPicture = part => Math.min(Math.max(part, 0), 1), wanted = {};
  for (const axis of ['query', 'key'])
    wanted[axis] = Math.min(Math.max(Math.round(sight.spans[axis] * factor), FEWEST[axis]), count[axis]);
  change({ part: { query: sight.query + (sight.spans.query - wanted.query) * inPicture(y),
                   key: sight.key + (sight.spans.key - wanted.key) * inPicture(x), spans: wanted } });
}

/** Zooms at the chosen token and the one that it has most to do with. */
function zoomAtChosen(factor) {
  if (!isOpen() || !shown.source?.ready) return;
  const line = shown.source.line(state.axis, state.token);
  let other = 0;
  line?.forEach((weight, t) => { if (weight > 0 && !(line[other] >= weight)) other = t; });
  const at = { [state.axis]: state.token, [across[state.axis]]: other };
  zoom(factor, (at.key + 0.5 - sight.key) / sight.spans.key, (at.query + 0.5 - sight.query) / sight.spans.query);
}

/** Drags the part in sight; a press that does not move is a click on a token. */
let dragged = false;
function drag(event) {
  if (event.button !== 0 || !plot || isWhole()) return;
  const from = { query: sight.query, key: sight.key }, start = { x: event.clientX, y: event.clientY };
  const move = ({ clientX, clientY }) => {
    dragged = dragged || Math.hypot(clientX - start.x, clientY - start.y) > 4;
    if (!dragged) return;
    change({ part: { query: from.query - (clientY - start.y) / plot.cell.query,
                     key: from.key - (clientX - start.x) / plot.cell.key, spans: { ...sight.spans } } });
  };
  dragged = false;
  addEventListener('mousemove', move);
  addEventListener('mouseup', () => removeEventListener('mousemove', move), { once: true });
}

// --------------------------------------------------------------------------------------------------------------- state

const state = { layer: -1, head: 0, scale: 'linear', axis: 'query', token: n - 1, hover: null };  // places in `layers`
const shown = { layer: -1, head: -1, matrix: null };  // the open head's weights [n, n], once they are computed
const isOpen = () => state.layer >= 0;
const current = () => layers[state.layer].heads[state.head];
/** The weight between the chosen token and another, along the chosen direction. */
const weightOf = other => shown.matrix[state.axis === 'query' ? state.token * n + other : other * n + state.token];

/** "#layer=1&head=2&token=5&by=key&scale=log", by the model's numbers; what makes no sense is left out. */
function readFragment() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const number = name => fields.has(name) && /^\d{1,9}$/.test(fields.get(name)) ? Number(fields.get(name)) : -1;
  state.layer = layers.findIndex(layer => layer.index === number('layer'));
  state.head = 0;
  if (isOpen()) state.head = Math.max(layers[state.layer].heads.findIndex(head => head.name === fields.get('head')), 0);
  state.token = inside(number('token'), n) ? number('token') : n - 1;
  state.axis = fields.get('by') === 'key' ? 'key' : 'query';
  state.scale = fields.get('scale') === 'log' ? 'log' : 'linear';
}

function writeFragment() {
  const fields = new URLSearchParams();
  if (isOpen()) {
    fields.set('layer', layers[state.layer].index);
    fields.set('head', current().name);
    fields.set('token', state.token);
    if (state.axis === 'key') fields.set('by', 'key');
  }
  if (state.scale === 'log') fields.set('scale', 'log');
  history.replaceState(null, '', '#' + fields);
}

/** Changes the state and draws what depends on it. */
function change(fields) {
  const before = { ...state };
  Object.assign(state, fields, { hover: null });
  hideTip();
  writeFragment();
  if (['layer', 'head', 'scale'].some(name => state[name] !== before[name])) drawScale();
  if (isOpen() && state.token !== before.token && !inSight(state.axis, state.token)) {
    const place = { ...sight, [state.axis]: state.token - sight.span / 2 };
    look(place.query, place.key, sight.span);
  }
  drawDetail();
}

// ----------------------------------------------------------------------------------------------------------- all heads

const thumbs = [];  // { button, canvas, layer, head, weights }
const columns = Math.max(...layers.map(layer => layer.heads.length));

function buildGrid() {
  const grid = byId('grid');
  grid.append(element('span', 'layer', 'head'));
  for (let h = 0; h < columns; ++h) {
    const names = layers.filter(({ heads }) => h < heads.length).map(({ heads }) => heads[h].name);
    grid.append(element('span', 'head', [...new Set(names)].join('/')));
  }
  layers.forEach((layer, l) => {
    grid.append(element('span', 'layer', visible(layer.name, 60)));
    for (let h = 0; h < columns; ++h) {
      if (h >= layer.heads.length) {
        grid.append(element('span'));
        continue;
      }
      const canvas = element('canvas');
      const button = element('button', layer.heads[h].name === 'mean' ? 'thumb mean' : 'thumb', canvas);
      button.setAttribute('aria-label', headName(l, h));
      button.addEventListener('click', () => change({ layer: l, head: h }));
      grid.append(button);
      thumbs.push({ button, canvas, layer: l, head: h, weights: thumbnailOf(layer.heads[h]) });
    }
  });
}

function sizeGrid() {
  const [room, gap, least, most] = isOpen() ? [220, 5, 28, 72] : [innerWidth - 230, 12, 44, 230];
  const size = Math.floor(Math.min(Math.max(room / columns - gap, least), most));
  byId('grid').style.gridTemplateColumns = `auto repeat(${columns}, ${size}px)`;
}

function drawScale() {
  for (const { canvas, weights } of thumbs) paint(canvas, weights);
  drawLegend();
  scaleSwitch(state.scale);
}

// ------------------------------------------------------------------------------------------------------------ one head

const chips = data.tokens.map((_, t) => {
  const chip = element('button', 'chip', words[t]);
  chip.addEventListener('click', () => change({ token: t }));
  chip.addEventListener('mousemove', event => {
    const [query, key] = state.axis === 'query' ? [state.token, t] : [t, state.token];
    hover({ query, key }, event);
  });
  chip.addEventListener('mouseleave', () => hover(null));
  return chip;
});

function drawDetail() {
  document.body.classList.toggle('open', isOpen());
  byId('detail').hidden = !isOpen();
  for (const { button, layer, head } of thumbs)
    button.setAttribute('aria-current', layer === state.layer && head === state.head);
  sizeGrid();
  if (!isOpen()) return;
  byId('name').textContent = headName(state.layer, state.head);
  axisSwitch(state.axis);
  const isQuery = state.axis === 'query';
  byId('chosen').replaceChildren(isQuery ? 'What ' : 'Who looks at ', element('b', '', words[state.token]),
                                 isQuery ? ` (query ${state.token}) looks at` : ` (key ${state.token})`);
  if (shown.layer === state.layer && shown.head === state.head) drawWeights();
  else computeWeights();
}

function computeWeights() {
  const { layer, head } = state, progress = byId('progress');
  Object.assign(shown, { layer, head, matrix: null });
  byId('detail').setAttribute('aria-busy', true);
  computeHead(layers[layer], current(), rows => {
    progress.hidden = false;
    progress.value = rows / n;
  }, matrix => {
    progress.hidden = true;
    shown.matrix = matrix;
    byId('detail').setAttribute('aria-busy', false);
    if (isOpen()) drawWeights();
  });
}

function drawWeights() {
  if (!shown.matrix) return;
  chips.forEach((chip, t) => {
    chip.style.background = ground(weightOf(t));
    chip.style.color = ink(weightOf(t));
    chip.setAttribute('aria-pressed', t === state.token);
  });
  showChosenChip();
  drawTop();
  drawMap();
}

/** Scrolls the chips, not the page. */
function showChosenChip() {
  const box = byId('chips'), chip = chips[state.token];
  const above = chip.offsetTop - box.offsetTop, below = above + chip.offsetHeight - box.clientHeight;
  if (above < box.scrollTop) box.scrollTop = above - 4;
  else if (below > box.scrollTop) box.scrollTop = below + 4;
}

function drawTop() {
  const order = Array.from({ length: n }, (_, t) => t).filter(t => weightOf(t) > 0);
  order.sort((a, b) => weightOf(b) - weightOf(a) || a - b);
  const first = order.slice(0, 12);
  byId('ranking').textContent = `${state.axis === 'query' ? 'Keys' : 'Queries'} by weight, ` +
    (first.length < order.length ? `${first.length} of ${order.length}` : `${order.length} above zero`);
  byId('top').replaceChildren(...first.map(t => {
    const fill = element('div', 'fill');
    fill.style.width = `${100 * place(weightOf(t)) / 255}%`;
    fill.style.background = css(palette[Math.max(place(weightOf(t)), 90)]);
    return element('li', '', element('span', 'word', `${t}  ${words[t]}`),
                   element('span', 'digits', digits(weightOf(t))), element('div', 'track', fill));
  }));
}

// --------------------------------------------------------------------------------------------------------- pointer

function hideTip() {
  byId('tip').hidden = true;
}

function hover(cell, event) {
  if (!plot || !shown.matrix) return;
  state.hover = cell;
  drawMarks();
  const tip = byId('tip');
  if (!cell) return hideTip();
  const { query, key } = cell;
  const parts = [];
  if (query !== null) parts.push(`query ${query} `, element('b', '', longWords[query]));
  if (query !== null && key !== null) parts.push(' \u2192 ');
  if (key !== null) parts.push(`key ${key} `, element('b', '', longWords[key]));
  if (query !== null && key !== null)
    parts.push(element('span', 'digits', digits(shown.matrix[query * n + key])));
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const x = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  const y = event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18;
  tip.style.transform = `translate(${Math.max(x, 4)}px, ${Math.max(y, 4)}px)`;
}

let dragged = false;

/** Drags the part in sight; a press that does not move is a click on a token. */
function drag(event) {
  if (event.button !== 0 || !plot || sight.span === n) return;
  const from = { ...sight }, start = { x: event.clientX, y: event.clientY };
  const move = ({ clientX, clientY }) => {
    look(from.query - (clientY - start.y) / plot.cell, from.key - (clientX - start.x) / plot.cell, from.span);
    dragged = dragged || Math.hypot(clientX - start.x, clientY - start.y) > 4;
    if (dragged) drawMap();
  };
  dragged = false;
  addEventListener('mousemove', move);
  addEventListener('mouseup', () => removeEventListener('mousemove', move), { once: true });
}

// -------------------------------------------------------------------------------------------------------- controls

/** Fills a group with buttons; returns what presses one of them. */
function makeSwitch(id, choices, choose) {
  const buttons = choices.map(([value, label]) => {
    const button = element('button', '', label);
    button.addEventListener('click', () => choose(value));
    return button;
  });
  byId(id).append(...buttons);
  return chosen => buttons.forEach((button, i) => button.setAttribute('aria-pressed', choices[i][0] === chosen));
}

const scaleSwitch = makeSwitch('scale', [['linear', 'Linear'], ['log', 'Log']], scale => change({ scale }));
const axes = [['query', 'Query \u2192 keys'], ['key', 'Key \u2190 queries']];
const axisSwitch = makeSwitch('axis', axes, axis => change({ axis }));

function move(layerStep, headStep) {
  if (!isOpen()) return change({ layer: 0, head: 0 });
  let { layer, head } = state;
  head += headStep;
  if (head < 0 || head >= layers[layer].heads.length) {
    layer += headStep;
    if (!inside(layer, layers.length)) return;
    head = headStep > 0 ? 0 : layers[layer].heads.length - 1;
  }
  layer += layerStep;
  if (inside(layer, layers.length)) change({ layer, head: Math.min(head, layers[layer].heads.length - 1) });
}

const zoomIn = () => zoomAtChosen(1 / 2);
const zoomOut = () => zoomAtChosen(2);
const whole = () => zoomAtChosen(n);

const keys = {
  ArrowLeft: () => move(0, -1),
  ArrowRight: () => move(0, 1),
  ArrowUp: () => move(-1, 0),
  ArrowDown: () => move(1, 0),
  l: () => change({ scale: state.scale === 'linear' ? 'log' : 'linear' }),
  d: () => change({ axis: state.axis === 'query' ? 'key' : 'query' }),
  '+': zoomIn,
  '-': zoomOut,
  0: whole,
  Escape: () => change({ layer: -1 }),
};

document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
  // The focus goes along, so that Enter and Tab mean what is seen.
  if (isOpen() && document.activeElement.classList.contains('thumb'))
    thumbs.find(({ layer, head }) => layer === state.layer && head === state.head).button.focus();
});
byId('previous').addEventListener('click', keys.ArrowLeft);
byId('next').addEventListener('click', keys.ArrowRight);
byId('close').addEventListener('click', keys.Escape);
byId('map').addEventListener('mousemove', event => hover(underPointer(event), event));
byId('map').addEventListener('mouseleave', () => hover(null));
byId('in').addEventListener('click', zoomIn);
byId('out').addEventListener('click', zoomOut);
byId('whole').addEventListener('click', whole);
byId('map').addEventListener('mousedown', drag);
byId('map').addEventListener('wheel', event => {
  if (!event.ctrlKey || !plot || !shown.matrix) return;  // pinching is a wheel with Ctrl; without, it scrolls
  event.preventDefault();
  const { left, top, side } = plot;
  zoom(2 ** (event.deltaY / 200), (event.offsetX - left) / side, (event.offsetY - top) / side);
}, { passive: false });
byId('map').addEventListener('click', event => {
  const cell = dragged ? null : underPointer(event);
  dragged = false;
  if (!cell) return;
  if (cell.query === null) change({ axis: 'key', token: cell.key });
  else if (cell.key === null) change({ axis: 'query', token: cell.query });
  else change({ token: state.axis === 'query' ? cell.query : cell.key });
});

// ----------------------------------------------------------------------------------------------------------- start

function drawAll() {
  choosePalette();
  drawScale();
  drawDetail();
}

const plural = (count, word) => `${count} ${word}${count === 1 ? '' : 's'}`;
const title = visible(data.title, 200);
const headCount = layers.reduce((sum, { heads }) => sum + heads.filter(({ name }) => name !== 'mean').length, 0);
const facts = [plural(n, 'token'), plural(layers.length, 'layer'), plural(headCount, 'head')];
if (data.group > 1) facts.push(`a thumbnail shows the largest of ${data.group} \u00d7 ${data.group} weights`);
document.title = title;
byId('title').textContent = title;
byId('facts').textContent = facts.join(' \u00b7 ');
byId('text').textContent = words.slice(0, 400).join(' ') + (n > 400 ? ' \u2026' : '');
byId('precision').textContent = `Weights are computed here from q, k and lse: off by at most ${
  data.error.toPrecision(2)} of themselves`;
byId('chips').append(...chips);
buildGrid();
readFragment();
drawAll();
addEventListener('hashchange', () => {
  readFragment();
  drawAll();
});
addEventListener('resize', drawDetail);
dark.addEventListener('change', drawAll);

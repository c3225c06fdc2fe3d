// --------------------------------------------------------------------------------------------------------------- state

const VIEWS = [['matrix', 'Matrix'], ['lines', 'Lines'], ['neurons', 'Neurons']];
const state = { layer: -1, head: 0, scale: 'linear', axis: 'query', token: lastWord('query'), hover: null,
                heads: [], between: 'all', view: 'matrix', pool: 'maximum', table: false, theme: 'auto' };
// layer, head: places in `layers`; heads: of which lines are drawn, the open one's where it is empty
const shown = { layer: -1, head: -1, source: null };  // the open head
const isOpen = () => state.layer >= 0;
const current = () => layers[state.layer].heads[state.head];

/** "#layer=1&head=2&token=5&by=key&scale=log&view=lines&heads=2,5&part=query,key,queries,keys&pool=mean&table=1
 *  &theme=dark&between=AB", by the model's numbers; what makes no sense is left out. */
function readFragment() {
  const fields = new URLSearchParams(location.hash.slice(1));
  const number = text => (/^\d{1,9}$/.test(text ?? '') ? Number(text) : -1);
  state.layer = layers.findIndex(layer => layer.index === number(fields.get('layer')));
  state.head = 0;
  if (isOpen()) state.head = Math.max(layers[state.layer].heads.findIndex(head => head.name === fields.get('head')), 0);
  state.axis = fields.get('by') === 'key' ? 'key' : 'query';
  const token = number(fields.get('token'));
  state.token = inside(token, count[state.axis]) ? token : lastWord(state.axis);
  state.scale = fields.get('scale') === 'log' ? 'log' : 'linear';
  state.view = VIEWS.some(([name]) => name === fields.get('view')) ? fields.get('view') : 'matrix';
  const places = new Set((fields.get('heads') ?? '').split(',').map(name =>
    (isOpen() ? layers[state.layer].heads.findIndex(head => head.name === name && name !== 'mean') : -1)));
  state.heads = [...places].filter(h => h >= 0).sort((a, b) => a - b).slice(0, kinds[data.kind].mostHeads);
  state.pool = fields.get('pool') === 'mean' && data.pooled ? 'mean' : 'maximum';
  state.theme = ['light', 'dark'].includes(fields.get('theme')) ? fields.get('theme') : 'auto';
  state.table = fields.get('table') === '1';
  state.between = BETWEEN.some(([name]) => name === fields.get('between')) ? fields.get('between') : 'all';
  const part = (fields.get('part') ?? '').split(',').map(number);
  if (part.length === 4 && part.every(value => value >= 0)) look(part[0], part[1], { query: part[2], key: part[3] });
  else look(0, 0, count);
}

let writing = 0;

/** Browsers do not like a new address many times a second: while the part in sight moves, it waits a little. */
function writeFragment(delay) {
  clearTimeout(writing);
  if (delay) return void (writing = setTimeout(writeFragment, delay));
  const fields = new URLSearchParams();
  if (isOpen()) {
    fields.set('layer', layers[state.layer].index);
    fields.set('head', current().name);
    fields.set('token', state.token);
    if (state.axis === 'key') fields.set('by', 'key');
    if (state.view !== 'matrix') fields.set('view', state.view);
    if (state.heads.length) fields.set('heads', state.heads.map(h => layers[state.layer].heads[h].name));
    if (state.between !== 'all') fields.set('between', state.between);
    if (state.pool === 'mean') fields.set('pool', 'mean');
    if (!isWhole()) fields.set('part', [sight.query, sight.key, sight.spans.query, sight.spans.key]);
  }
  if (state.scale === 'log') fields.set('scale', 'log');
  if (state.table) fields.set('table', 1);
  if (state.theme !== 'auto') fields.set('theme', state.theme);
  history.replaceState(null, '', '#' + fields);
}

/** Changes the state, or with `part` what is in sight, and draws what depends on it. */
function change({ part, ...fields }) {
  const before = { ...state };
  Object.assign(state, fields, { hover: null });
  if (isOpen()) state.heads = state.heads.filter(h => (layers[state.layer].heads[h]?.name ?? 'mean') !== 'mean');
  state.token = Math.min(state.token, count[state.axis] - 1);
  hideTip();
  if (part) look(part.query, part.key, part.spans);
  const moved = state.token !== before.token || state.axis !== before.axis;
  if (isOpen() && moved && !inSight(state.axis, state.token))
    look(...['query', 'key'].map(axis => (axis === state.axis ? state.token - sight.spans[axis] / 2 : sight[axis])),
         sight.spans);
  writeFragment(part ? 200 : 0);
  if (state.theme !== before.theme) choosePalette();
  if (['layer', 'head', 'scale', 'theme'].some(name => state[name] !== before[name])) drawScale();
  if (part && shown.source?.ready && Object.keys(fields).length === 0) drawView();
  else drawDetail();
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
    for (let h = 0; h < columns; ++h) grid.append(h < layer.heads.length ? thumb(l, h) : element('span'));
  });
}

function thumb(l, h) {
  const head = layers[l].heads[h], canvas = element('canvas');
  const button = element('button', head.name === 'mean' ? 'thumb mean' : 'thumb', canvas);
  button.setAttribute('aria-label', headName(l, h));
  button.addEventListener('click', () => change({ layer: l, head: h }));
  const one = { button, canvas, layer: l, head: h };
  one.weights = kinds[data.kind].thumbnail(head, layers[l], weights => {  // with a server it arrives later
    one.weights = weights;
    drawScale();
  });
  thumbs.push(one);
  return button;
}

function sizeGrid() {
  const isNarrow = innerWidth <= 600;
  const [room, gap, least, most] = !isOpen() ? [innerWidth - (isNarrow ? 90 : 230), isNarrow ? 3 : 12, 16, 230]
    : innerWidth > 1000 ? [220, 5, 28, 72] : [innerWidth - 110, 5, 16, 72];
  const size = Math.floor(Math.min(Math.max(room / columns - gap, least), most));
  byId('grid').style.gridTemplateColumns = `auto repeat(${columns}, ${size}px)`;
}

function drawScale() {
  for (const { canvas, weights } of thumbs) paint(canvas, weights, ...data.thumbnail);
  drawLegend();
  scaleSwitch(state.scale);
  themeSwitch(state.theme);
}

// ------------------------------------------------------------------------------------------------------------ one head

function drawDetail() {
  document.body.classList.toggle('open', isOpen());
  byId('detail').hidden = !isOpen();
  byId('table').hidden = !state.table;
  byId('grid').hidden = byId('hint').hidden = state.table;
  overviewSwitch(state.table ? 'table' : 'heads');
  for (const { button, layer, head } of thumbs)
    button.setAttribute('aria-current', layer === state.layer && head === state.head);
  sizeGrid();
  drawTable();
  if (!isOpen()) return leaveTogether();
  byId('name').textContent = headName(state.layer, state.head);
  axisSwitch(state.axis);
  viewSwitch(state.view);
  poolSwitch(state.pool);
  const isQuery = state.axis === 'query';
  byId('chosen').replaceChildren(isQuery ? 'What ' : 'Who looks at ',
                                 element('b', '', word(state.axis, state.token)),
                                 isQuery ? ` (query ${state.token}) looks at` : ` (key ${state.token})`);
  if (shown.layer !== state.layer || shown.head !== state.head) openHead();
  else drawWeights();
}

function openHead() {
  const { layer, head } = state;
  if (shown.source) shown.source.isLeft = true;
  const source = new kinds[data.kind].Head(layers[layer], current(), () => {
    if (shown.source === source && isOpen()) drawWeights();
  });
  Object.assign(shown, { layer, head, source });
  drawWeights();
}

function drawWeights() {
  const { source } = shown, progress = byId('progress');
  progress.hidden = source.ready;
  progress.value = source.done;
  if (source.ready) {
    drawTokens();
    drawView();
  }
  byId('detail').setAttribute('aria-busy', source.busy);
}

/** Changes of the part in sight need no more than this. */
function drawView() {
  for (const [name] of VIEWS) byId(`${name}-view`).hidden = state.view !== name;
  for (const id of ['svg-copy', 'csv']) byId(id).hidden = state.view !== 'matrix';
  for (const id of ['in', 'out', 'whole']) byId(id).hidden = state.view === 'neurons';
  byId('pool').hidden = state.view !== 'matrix' || !data.pooled;
  drawLegend();
  if (state.view === 'matrix') drawMap();
  else if (state.view === 'lines') drawLines();
  else drawNeurons();
  if (state.view !== 'lines') leaveTogether();
  byId('detail').setAttribute('aria-busy', shown.source.busy || isTogetherBusy());
}

// --------------------------------------------------------------------------------------------------------- pointer

function hideTip() {
  byId('tip').hidden = true;
}

/** Marks a cell { query, key, weight }, of which a query or a key may be null, and says what it is. */
function hover(cell, event) {
  if (!shown.source?.ready) return;
  state.hover = cell;
  if (state.view === 'matrix' && plot) drawMarks();
  if (state.view === 'lines') drawLines();
  const tip = byId('tip');
  if (!cell) return hideTip();
  const parts = [];
  for (const axis of ['query', 'key']) {
    const t = cell[axis], more = cell.spans?.[axis] > 1 ? `\u2013${t + cell.spans[axis] - 1}` : '';
    if (t === null) continue;
    if (parts.length) parts.push(' \u2192 ');
    parts.push(`${axis} ${t}${more} `, ...(more ? [] : [element('b', '', longWord(axis, t))]));
  }
  if (cell.query !== null && cell.key !== null && cell.weight !== undefined) {
    const known = Number.isNaN(cell.weight) ? shown.source.unknown(cell) : digits(cell.weight);
    parts.push(element('span', 'digits', cell.spans ? `${plot.isMean ? 'mean' : 'largest'} ${known}` : known));
  }
  tip.replaceChildren(...parts);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const x = event.clientX + 16 + width > innerWidth ? event.clientX - width - 12 : event.clientX + 16;
  const y = event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18;
  tip.style.transform = `translate(${Math.max(x, 4)}px, ${Math.max(y, 4)}px)`;
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
const viewSwitch = makeSwitch('view', VIEWS, view => change({ view }));
const pools = [['maximum', 'Largest'], ['mean', 'Mean']];
const poolSwitch = makeSwitch('pool', pools, pool => change({ pool }));
const themes = [['auto', 'Auto'], ['light', 'Light'], ['dark', 'Dark']];
const themeSwitch = makeSwitch('theme', themes, theme => change({ theme }));
const betweenSwitch = makeSwitch('between', BETWEEN, between => change({ between }));
const overviewSwitch = makeSwitch('overview', [['heads', 'Pictures'], ['table', 'Table']],
                                  chosen => change({ table: chosen === 'table' }));

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

function step(by) {
  const token = state.token + by;
  if (isOpen() && inside(token, count[state.axis])) change({ token });
}

const zoomIn = () => zoomAtChosen(1 / 2);
const zoomOut = () => zoomAtChosen(2);
const whole = () => zoomAtChosen(Math.max(count.query, count.key));
const nextOf = (list, value) => list[(list.findIndex(([name]) => name === value) + 1) % list.length][0];

const keys = {
  ArrowLeft: () => move(0, -1),
  ArrowRight: () => move(0, 1),
  ArrowUp: () => move(-1, 0),
  ArrowDown: () => move(1, 0),
  l: () => change({ scale: state.scale === 'linear' ? 'log' : 'linear' }),
  d: () => change({ axis: across[state.axis] }),
  v: () => change({ view: nextOf(VIEWS, state.view) }),
  m: () => data.pooled && change({ pool: nextOf(pools, state.pool) }),
  t: () => change({ table: !state.table }),
  '[': () => step(-1),
  ']': () => step(1),
  '/': () => byId('search').focus(),
  '+': zoomIn,
  '-': zoomOut,
  0: whole,
  Escape: () => change({ layer: -1 }),
};

document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
  if (event.target === byId('search')) return;
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
  if (!event.ctrlKey || !plot?.cells) return;  // pinching is a wheel with Ctrl; without, it scrolls
  event.preventDefault();
  const { left, top, side } = plot;
  zoom(2 ** (event.deltaY / 200), (event.offsetX - left) / side.key, (event.offsetY - top) / side.query);
}, { passive: false });
byId('map').addEventListener('click', event => {
  const cell = dragged ? null : underPointer(event);
  dragged = false;
  if (!cell) return;
  if (cell.query === null) change({ axis: 'key', token: cell.key });
  else if (cell.key === null) change({ axis: 'query', token: cell.query });
  else change({ token: cell[state.axis] });
});

// ----------------------------------------------------------------------------------------------------------- start

function drawAll() {
  choosePalette();
  drawScale();
  drawDetail();
}

function facts() {
  const headCount = layers.reduce((sum, { heads }) => sum + heads.filter(({ name }) => name !== 'mean').length, 0);
  const list = ownText ? [plural(count.query, 'token')]
    : [count.query === 1 ? '1 query' : `${count.query} queries`, plural(count.key, 'key')];
  list.push(plural(layers.length, 'layer'), plural(headCount, 'head'));
  if (Math.max(...data.groups) > 1)
    list.push(`a thumbnail shows the largest of ${data.groups.join(' \u00d7 ')} weights`);
  return list.join(' \u00b7 ');
}

document.title = visible(data.title, 200);
byId('title').textContent = document.title;
byId('facts').textContent = facts();
byId('text').textContent = ownText ? beginning('query') : `${beginning('query')} \u2192 ${beginning('key')}`;
byId('pool-key').hidden = !data.pooled;
byId('precision').textContent = kinds[data.kind].precision();
readFragment();
choosePalette();
buildGrid();
drawAll();
addEventListener('hashchange', () => {
  readFragment();
  drawAll();
});
addEventListener('resize', drawDetail);
dark.addEventListener('change', drawAll);

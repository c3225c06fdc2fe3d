'use strict';
// The script of attn::view::html_page(). Text from outside reaches the page as text content and canvas text alone.
(() => {
  const byId = id => document.getElementById(id);
  const data = JSON.parse(byId('data').textContent);
  const n = data.tokens.length;
  const UNIT = 2 ** 24 - 1;  // a weight is an integer over this

  // ---------------------------------------------------------------------------------------------------------- data

  const valueOf = new Uint8Array(128);
  [...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/'].forEach((digit, value) => {
    valueOf[digit.charCodeAt(0)] = value;
  });

  /** Four digits of base 64 a weight. Integers up to 2^24 are exact in float32. */
  function decode(text) {
    const weights = new Float32Array(text.length / 4);
    for (let i = 0, at = 0; i < weights.length; ++i, at += 4) {
      weights[i] = valueOf[text.charCodeAt(at)] << 18 | valueOf[text.charCodeAt(at + 1)] << 12 |
                   valueOf[text.charCodeAt(at + 2)] << 6 | valueOf[text.charCodeAt(at + 3)];
    }
    return weights;
  }

  function mean(heads) {
    const sum = new Float64Array(n * n);
    for (const weights of heads) for (let i = 0; i < sum.length; ++i) sum[i] += weights[i];
    return sum.map(value => value / heads.length);
  }

  /** Layers of heads; the last one of several is their mean. */
  const layers = data.layers.map(layer => {
    const heads = layer.heads.map((text, index) => ({ name: String(index), weights: decode(text) }));
    if (heads.length > 1) heads.push({ name: 'mean', weights: mean(heads.map(head => head.weights)) });
    return { name: visible(layer.name, 60), heads };
  });

  // ---------------------------------------------------------------------------------------------------------- text

  /** The text with a visible sign for what would not show or would change how the rest shows; cut to a length. */
  function visible(text, limit) {
    const points = Array.from(text.slice(0, 2 * limit + 2));
    const shown = points.slice(0, limit).join('').replace(/[\p{C}\p{Zl}\p{Zp}]|[^\S ]/gu, sign => {
      const code = sign.codePointAt(0);
      if (code < 32) return String.fromCharCode(0x2400 + code);
      return '<U+' + code.toString(16).toUpperCase().padStart(4, '0') + '>';
    });
    const edged = shown.replace(/^ +| +$/g, spaces => '\u2423'.repeat(spaces.length));
    return points.length > limit ? edged + '\u2026' : edged;
  }

  const words = data.tokens.map(token => visible(token, 14));
  const axisWords = data.tokens.map((token, t) => (n > 16 ? `${t} ${visible(token, 8)}` : words[t]));
  const longWords = data.tokens.map(token => visible(token, 200));  // where there is room

  const digits = weight => (weight / UNIT).toFixed(7);

  function element(tag, className, ...children) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    node.append(...children);  // strings become text nodes
    return node;
  }

  // ------------------------------------------------------------------------------------------------------- colours

  const dark = matchMedia('(prefers-color-scheme: dark)');
  let palette;  // [256][3]

  function choosePalette() {
    const hex = dark.matches ? data.dark : data.light;
    palette = Array.from({ length: 256 }, (_, i) => [0, 2, 4].map(at => parseInt(hex.substr(6 * i + at, 2), 16)));
  }

  /** Where a weight stands on the scale: 0 to 255. */
  function place(weight) {
    const w = weight / UNIT;
    const position = state.scale === 'linear' ? w : w > 0 ? 1 + Math.log10(w) / 4 : 0;
    return Math.round(255 * Math.min(1, Math.max(0, position)));
  }

  const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
  const ground = weight => css(palette[place(weight)]);
  function ink(weight) {
    const [red, green, blue] = palette[place(weight)];
    return 299 * red + 587 * green + 114 * blue > 140000 ? '#14161b' : '#ffffff';
  }
  const themeColour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  const GROUP = Math.ceil(n / 96);  // a pixel of a thumbnail shows the largest of GROUP x GROUP weights

  function pooled(weights) {
    if (GROUP === 1) return weights;
    const side = Math.ceil(n / GROUP), largest = new Float32Array(side * side);
    for (let i = 0; i < n; ++i) {
      for (let j = 0; j < n; ++j) {
        const at = Math.floor(i / GROUP) * side + Math.floor(j / GROUP);
        if (weights[i * n + j] > largest[at]) largest[at] = weights[i * n + j];
      }
    }
    return largest;
  }

  /** One pixel a weight of a square matrix. */
  function paint(canvas, weights) {
    const side = Math.sqrt(weights.length);
    canvas.width = canvas.height = side;
    const image = new ImageData(side, side);
    const pixels = new Uint32Array(image.data.buffer);
    const packed = Uint32Array.from(palette, ([red, green, blue]) => (255 << 24 | blue << 16 | green << 8 | red) >>> 0);
    for (let i = 0; i < pixels.length; ++i) pixels[i] = packed[place(weights[i])];
    canvas.getContext('2d').putImageData(image, 0, 0);
  }

  // --------------------------------------------------------------------------------------------------------- state

  const state = { layer: -1, head: 0, scale: 'linear', axis: 'query', token: n - 1, hover: null };
  const isOpen = () => state.layer >= 0;
  const current = () => layers[state.layer].heads[state.head];
  /** The weight between the chosen token and another, along the chosen direction. */
  const weightOf = other =>
    current().weights[state.axis === 'query' ? state.token * n + other : other * n + state.token];

  const inside = (value, count) => Number.isInteger(value) && value >= 0 && value < count;

  /** "#layer=1&head=2&token=5&by=key&scale=log"; what makes no sense is left out. */
  function readFragment() {
    const fields = new URLSearchParams(location.hash.slice(1));
    const number = name => fields.has(name) && /^\d{1,9}$/.test(fields.get(name)) ? Number(fields.get(name)) : -1;
    state.layer = inside(number('layer'), layers.length) ? number('layer') : -1;
    if (isOpen()) {
      const heads = layers[state.layer].heads;
      state.head = fields.get('head') === 'mean' ? heads.length - 1 : Math.max(number('head'), 0);
      if (!inside(state.head, heads.length)) state.head = 0;
    }
    state.token = inside(number('token'), n) ? number('token') : n - 1;
    state.axis = fields.get('by') === 'key' ? 'key' : 'query';
    state.scale = fields.get('scale') === 'log' ? 'log' : 'linear';
  }

  function writeFragment() {
    const fields = new URLSearchParams();
    if (isOpen()) {
      fields.set('layer', state.layer);
      fields.set('head', current().name);
      fields.set('token', state.token);
      if (state.axis === 'key') fields.set('by', 'key');
    }
    if (state.scale === 'log') fields.set('scale', 'log');
    history.replaceState(null, '', '#' + fields);
  }

  /** Changes the state and draws what depends on it. */
  function change(fields) {
    const scaleChanges = 'scale' in fields && fields.scale !== state.scale;
    Object.assign(state, fields, { hover: null });
    hideTip();
    writeFragment();
    if (scaleChanges) drawScale();
    drawDetail();
  }

  // ------------------------------------------------------------------------------------------------------ all heads

  const thumbs = [];  // { button, canvas, layer, head, weights }

  function buildGrid() {
    const grid = byId('grid');
    const columns = Math.max(...layers.map(layer => layer.heads.length));
    grid.append(element('span', 'layer', 'head'));
    for (let head = 0; head < columns; ++head) {
      const isMean = layers.every(layer => layer.heads.length < columns || layer.heads[head].name === 'mean');
      grid.append(element('span', 'head', isMean && columns > 1 ? 'mean' : String(head)));
    }
    layers.forEach((layer, l) => {
      grid.append(element('span', 'layer', layer.name));
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
        thumbs.push({ button, canvas, layer: l, head: h, weights: pooled(layer.heads[h].weights) });
      }
    });
  }

  function sizeGrid() {
    const columns = Math.max(...layers.map(layer => layer.heads.length));
    const [room, gap, least, most] = isOpen() ? [220, 5, 28, 72] : [innerWidth - 230, 12, 44, 230];
    const size = Math.floor(Math.min(Math.max(room / columns - gap, least), most));
    byId('grid').style.gridTemplateColumns = `auto repeat(${columns}, ${size}px)`;
  }

  const headName = (l, h) => {
    const { name } = layers[l].heads[h];
    return `${layers[l].name}, ${name === 'mean' ? 'mean of heads' : 'head ' + name}`;
  };

  function drawScale() {
    for (const { canvas, weights } of thumbs) paint(canvas, weights);
    const legend = byId('legend').getContext('2d');
    for (let i = 0; i < 256; ++i) {
      legend.fillStyle = css(palette[i]);
      legend.fillRect(i, 0, 1, 1);
    }
    const ticks = state.scale === 'linear' ? '0 0.25 0.5 0.75 1' : '\u22640.0001 0.001 0.01 0.1 1';
    byId('ticks').replaceChildren(...ticks.split(' ').map(tick => element('span', '', tick)));
    scaleSwitch(state.scale);
  }

  // ------------------------------------------------------------------------------------------------------- one head

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
    const shown = order.slice(0, 12);
    byId('ranking').textContent = `${state.axis === 'query' ? 'Keys' : 'Queries'} by weight, ` +
      (shown.length < order.length ? `${shown.length} of ${order.length}` : `${order.length} above zero`);
    byId('top').replaceChildren(...shown.map(t => {
      const fill = element('div', 'fill');
      fill.style.width = `${100 * place(weightOf(t)) / 255}%`;
      fill.style.background = css(palette[Math.max(place(weightOf(t)), 90)]);
      return element('li', '', element('span', 'word', `${t}  ${words[t]}`),
                     element('span', 'digits', digits(weightOf(t))), element('div', 'track', fill));
    }));
  }

  // The map: labels of queries on the left, labels of keys on top at 45 degrees, cells of `cell` CSS pixels.
  const LABEL = '12px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
  let plot = null;  // { left, top, cell, step, width, height }

  function measure() {
    const context = byId('map').getContext('2d');
    context.font = LABEL;
    const longest = Math.min(130, Math.max(...axisWords.map(word => context.measureText(word).width)));
    const left = Math.max(Math.ceil(longest), 56) + 20, slanted = Math.max(Math.ceil(longest * Math.SQRT1_2), 20);
    const room = byId('plot').clientWidth - left - slanted - 12;
    const high = Math.max(innerHeight - 190 - slanted, 420);
    const cell = Math.max(Math.floor(Math.min(room / n, high / n, 56)), 3);
    const top = slanted + 16;
    const width = left + n * cell + slanted + 12, height = top + n * cell + 2;
    return { left, top, cell, step: Math.ceil(14 / cell), width, height };
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

  /** The label of a query or a key, on a patch of `ground` if one is given. */
  function drawLabel(context, axis, t, patch) {
    const { left, top, cell } = plot;
    const isQuery = axis === 'query', most = isQuery ? left - 14 : 170;
    const ink = context.fillStyle, length = Math.min(context.measureText(axisWords[t]).width, most);
    context.save();
    context.translate(isQuery ? left - 10 : left + (t + 0.5) * cell + 2, isQuery ? top + (t + 0.5) * cell : top - 8);
    if (!isQuery) context.rotate(-Math.PI / 4);
    context.textAlign = isQuery ? 'right' : 'left';
    if (patch) {
      context.fillStyle = patch;
      context.fillRect(isQuery ? -length - 4 : 0, -8, length + 4, 16);
      context.fillStyle = ink;
    }
    context.fillText(axisWords[t], 0, 0, most);
    context.restore();
  }

  function drawMap() {
    plot = measure();
    const { left, top, cell, step, width, height } = plot;
    const weights = current().weights;
    const context = fit(byId('map'), width, height);
    byId('map').setAttribute('aria-label', `Weights of ${headName(state.layer, state.head)}`);
    context.font = LABEL;
    context.fillStyle = themeColour('--muted');
    for (let t = 0; t < n; t += step) {
      drawLabel(context, 'query', t);
      drawLabel(context, 'key', t);
    }
    context.font = '11px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
    context.textAlign = 'right';
    context.fillText('keys \u2192', left - 10, top - 28, left - 14);
    context.fillText('queries \u2193', left - 10, top - 14, left - 14);
    if (cell < 12) {
      const small = document.createElement('canvas');
      paint(small, weights);
      context.imageSmoothingEnabled = false;
      context.drawImage(small, left, top, n * cell, n * cell);
    } else {
      drawCells(context, weights);
    }
    context.strokeStyle = themeColour('--line');
    context.strokeRect(left - 0.5, top - 0.5, n * cell + 1, n * cell + 1);
    drawMarks();
  }

  /** Large cells one by one, with a thin gap, and with two digits where these fit. */
  function drawCells(context, weights) {
    const { left, top, cell } = plot;
    context.font = '11px ui-monospace, "DejaVu Sans Mono", monospace';
    context.textAlign = 'center';
    for (let i = 0; i < n * n; ++i) {
      if (weights[i] === 0) continue;
      const x = left + (i % n) * cell, y = top + Math.floor(i / n) * cell;
      context.fillStyle = ground(weights[i]);
      context.fillRect(x + 0.5, y + 0.5, cell - 1, cell - 1);
      if (cell < 34) continue;
      context.fillStyle = ink(weights[i]);
      const text = weights[i] / UNIT < 0.005 ? '<.01' : (weights[i] / UNIT).toFixed(2).replace(/^0/, '');
      context.fillText(text, x + cell / 2, y + cell / 2 + 1);
    }
  }

  /** The chosen row or column, and the cell under the pointer with both of its labels. */
  function drawMarks() {
    const { left, top, cell, width, height } = plot;
    const context = fit(byId('marks'), width, height);
    const accent = themeColour('--accent');
    const strong = (axis, t) => {
      context.font = 'bold ' + LABEL;
      context.fillStyle = accent;
      drawLabel(context, axis, t, themeColour('--ground'));
    };
    context.strokeStyle = accent;
    context.lineWidth = 2;
    if (state.axis === 'query') context.strokeRect(left - 1, top + state.token * cell - 1, n * cell + 2, cell + 2);
    else context.strokeRect(left + state.token * cell - 1, top - 1, cell + 2, n * cell + 2);
    if (!state.hover) {
      strong(state.axis, state.token);
      return;
    }
    const { query, key } = state.hover;
    context.globalAlpha = 0.75;
    context.lineWidth = 1;
    if (query !== null) context.strokeRect(left - 0.5, top + query * cell - 0.5, n * cell + 1, cell + 1);
    if (key !== null) context.strokeRect(left + key * cell - 0.5, top - 0.5, cell + 1, n * cell + 1);
    context.globalAlpha = 1;
    context.lineWidth = 2;
    if (query !== null && key !== null)
      context.strokeRect(left + key * cell - 1, top + query * cell - 1, cell + 2, cell + 2);
    if (query !== null) strong('query', query);
    if (key !== null) strong('key', key);
  }

  /** What lies under the pointer: a cell, a label of a query (no key) or a label of a key (no query). */
  function underPointer(event) {
    const { left, top, cell } = plot;
    const x = event.offsetX - left, y = event.offsetY - top;
    if (y < 0) {
      const key = Math.floor((x + y) / cell);  // along the slant of the labels
      return inside(key, n) ? { query: null, key } : null;
    }
    const query = Math.floor(y / cell);
    if (!inside(query, n)) return null;
    if (x < 0) return { query, key: null };
    const key = Math.floor(x / cell);
    return inside(key, n) ? { query, key } : null;
  }

  // --------------------------------------------------------------------------------------------------------- pointer

  function hideTip() {
    byId('tip').hidden = true;
  }

  function hover(cell, event) {
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
      parts.push(element('span', 'digits', digits(current().weights[query * n + key])));
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

  const keys = {
    ArrowLeft: () => move(0, -1),
    ArrowRight: () => move(0, 1),
    ArrowUp: () => move(-1, 0),
    ArrowDown: () => move(1, 0),
    l: () => change({ scale: state.scale === 'linear' ? 'log' : 'linear' }),
    d: () => change({ axis: state.axis === 'query' ? 'key' : 'query' }),
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
  byId('map').addEventListener('click', event => {
    const cell = underPointer(event);
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
  const headCount = data.layers.reduce((sum, layer) => sum + layer.heads.length, 0);
  const facts = [plural(n, 'token'), plural(layers.length, 'layer'), plural(headCount, 'head')];
  if (GROUP > 1) facts.push(`a thumbnail shows the largest of ${GROUP} \u00d7 ${GROUP} weights`);
  document.title = title;
  byId('title').textContent = title;
  byId('facts').textContent = facts.join(' \u00b7 ');
  byId('text').textContent = words.slice(0, 400).join(' ') + (n > 400 ? ' \u2026' : '');
  byId('precision').textContent = `Weights are stored in 24 bits: off by at most ${(0.5 / UNIT).toPrecision(2)}`;
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
})();

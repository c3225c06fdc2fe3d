// -------------------------------------------------------------------------------------------------------------- tokens
// The tokens of a row or a column: as buttons coloured by weight, in the order of weights, and by search.

const MOST_CHIPS = 2048;  // tokens that have a button; of longer texts those around the chosen one
const NEIGHBOURS = 50;
const RANKED = 12;
const EDGE = 3;           // CSS pixels around the rows of buttons: whole rows are in sight

/** Buttons for the tokens of an axis, in a box that scrolls. They stay the same as long as the same tokens have one. */
class Chips {
  constructor(id, choose) {
    this.box = byId(id);
    this.choose = choose;
    this.axis = null;
    this.first = 0;
    this.chips = [];
  }

  /** Makes buttons for the tokens around `t`. */
  around(axis, t) {
    if (this.axis === axis && this.isAmid(t)) return;
    const most = Math.min(count[axis], MOST_CHIPS);
    this.axis = axis;
    this.first = Math.min(Math.max(t - most / 2, 0), count[axis] - most);
    this.chips = Array.from({ length: most }, (_, i) => this.chip(this.first + i));
    const more = (number, where) => (number > 0 ? [element('span', 'more', `${number} ${where}`)] : []);
    this.box.replaceChildren(...more(this.first, 'before'), ...this.chips,
                             ...more(count[axis] - this.first - most, 'behind'));
  }

  /** It has a button, and so have its neighbours. */
  isAmid(t) {
    const end = this.first + this.chips.length;
    return (t >= this.first + NEIGHBOURS || this.first === 0) && (t < end - NEIGHBOURS || end === count[this.axis]);
  }

  chip(t) {
    const { axis } = this, chip = element('button', t === data.second ? 'chip second' : 'chip', word(axis, t));
    chip.addEventListener('click', () => this.choose(axis, t));
    chip.addEventListener('mousemove', event => {
      const pair = { [state.axis]: state.token, [across[state.axis]]: t };
      if (ownText || axis !== state.axis) pair.weight = shown.source.line(state.axis, state.token)?.[t];
      else Object.assign(pair, { query: null, key: null, [axis]: t });  // one that may be chosen
      hover(pair, event);
    });
    chip.addEventListener('mouseleave', () => hover(null));
    return chip;
  }

  /** Colours by weight, and marks the chosen token. */
  draw(line, chosen) {
    this.chips.forEach((chip, i) => {
      const weight = line ? line[this.first + i] : 0, isKnown = line && !Number.isNaN(weight);
      chip.style.background = isKnown ? ground(weight) : '';
      chip.style.color = isKnown ? ink(weight) : '';
      chip.classList.toggle('unknown', Number.isNaN(weight));
      chip.setAttribute('aria-pressed', this.first + i === chosen);
    });
    if (chosen !== null) this.show(chosen);
  }

  /** Scrolls the chips, not the page. */
  show(t) {
    const { box } = this, chip = this.chips[t - this.first];
    const above = chip.offsetTop - box.offsetTop, below = above + chip.offsetHeight - box.clientHeight;
    if (above - EDGE < box.scrollTop) box.scrollTop = above - EDGE;
    else if (below + EDGE > box.scrollTop) box.scrollTop = below + EDGE;
  }
}

const chips = new Chips('chips', (axis, t) => change(ownText ? { token: t } : { axis, token: t }));
const choices = new Chips('choices', (axis, t) => change({ axis, token: t }));  // of two texts, the one chosen from

function drawTokens() {
  const { axis, token } = state, far = across[axis], line = shown.source.line(axis, token);
  byId('choices').hidden = ownText;
  if (ownText) {
    chips.around(far, token);
    chips.draw(line, token);
  } else {
    choices.around(axis, token);
    choices.draw(null, token);
    chips.around(far, Math.min(sight[far] + Math.floor(sight.spans[far] / 2), count[far] - 1));
    chips.draw(line, null);
  }
  byId('numbers').textContent = shown.source.numbers(axis, token).join(' \u00b7 ');
  if (line) drawRanking(line);
}

/** The largest of a line: places, falling by weight, rising among equals; and how many are above zero. */
function ranked(line, most) {
  const best = [];
  let above = 0;
  line.forEach((weight, t) => {
    if (!(weight > 0)) return;
    ++above;
    if (best.length === most && !(weight > line[best[most - 1]])) return;
    let at = best.length;
    while (at > 0 && line[best[at - 1]] < weight) --at;
    best.splice(at, 0, t);
    if (best.length > most) best.pop();
  });
  return { best, above };
}

function drawRanking(line) {
  const far = across[state.axis], { best, above } = ranked(line, RANKED);
  const all = line.some(Number.isNaN) ? 'known' : 'above zero';
  byId('ranking').textContent = `${far === 'key' ? 'Keys' : 'Queries'} by weight, ` +
    (best.length < above ? `${best.length} of ${above}` : `${above} ${all}`);
  byId('top').replaceChildren(...best.map(t => {
    const fill = element('div', 'fill');
    fill.style.width = `${100 * place(line[t]) / 255}%`;
    fill.style.background = css(palette[Math.max(place(line[t]), 90)]);
    return element('li', '', element('span', 'word', `${t}  ${word(far, t)}`),
                   element('span', 'digits', digits(line[t])), element('div', 'track', fill));
  }));
}

// -------------------------------------------------------------------------------------------------------------- search

const search = { text: '', found: [], at: -1 };  // found: [axis, token]

/** Finds the tokens that contain a text, whatever its case, and goes to the next, or to the one before. */
function find(step) {
  const text = byId('search').value.toLowerCase();
  if (text !== search.text) {
    Object.assign(search, { text, found: [], at: step > 0 ? -1 : 0 });
    for (const axis of text === '' ? [] : ownText ? ['query'] : ['query', 'key'])
      tokens[axis].forEach((token, t) => { if (token.toLowerCase().includes(text)) search.found.push([axis, t]); });
  }
  const { found } = search;
  if (found.length > 0) {
    search.at = (search.at + step + found.length) % found.length;
    const [axis, token] = found[search.at];
    change({ ...(isOpen() ? {} : { layer: 0, head: 0 }), ...(ownText ? {} : { axis }), token });
  }
  byId('found').textContent = text === '' ? '' : found.length === 0 ? 'none' : `${search.at + 1} of ${found.length}`;
}

byId('search').addEventListener('keydown', event => {
  if (event.key === 'Enter') find(event.shiftKey ? -1 : 1);
  else if (event.key === 'Escape') event.target.blur();
  else return;
  event.preventDefault();
  event.stopPropagation();
});

// -------------------------------------------------------------------------------------------------------------- pooled
// The heads of a page that is too long for its q and k: pictures of the largest and of the mean weights of rectangles,
// and single weights: the largest of each row, those around its own token, and windows. page_pooled.cpp packs them.

const logTable = (bits, range) => {
  const last = 2 ** bits - 1;
  return Float32Array.from({ length: last + 1 }, (_, code) => (code ? 2 ** (range * (code - last) / (last - 1)) : 0));
};
const cellWeights = logTable(8, 24), meanWeights = logTable(8, 32), singleWeights = logTable(16, 32);
/** Where all weights are known: { query, key, spans }. */
const windows = (data.pooled?.windows ?? []).map(([query, key, queries, keys]) =>
  ({ query, key, spans: { query: queries, key: keys } }));
const holds = (outer, inner) => ['query', 'key'].every(axis =>
  inner[axis] >= outer[axis] && inner[axis] + inner.spans[axis] <= outer[axis] + outer.spans[axis]);
const BLOCK = 8;  // pixels of a cell of the picture; where one would be larger, single weights are drawn

async function inflated(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers whose bytes are in planes, all lowest bytes first. */
function fromPlanes(bytes, planes) {
  const length = bytes.length / planes, numbers = new Uint32Array(length);
  for (let plane = 0; plane < planes; ++plane)
    for (let n = 0; n < length; ++n) numbers[n] |= bytes[plane * length + n] << 8 * plane;
  return numbers;
}

const weightsOf = async base64 => Float32Array.from(fromPlanes(await inflated(base64), 2), code => singleWeights[code]);

class PooledHead {
  constructor(layer, head, arrived) {
    this.head = head;
    this.reach = [layer.reach[0] ?? -Infinity, layer.reach[1] ?? Infinity];  // distances of keys that a query can see
    this.done = 0;
    this.unpack().then(() => {
      this.done = 1;
      arrived();
    });
  }

  async unpack() {
    const { head } = this;
    this.cells = Float32Array.from(await inflated(head.picture), code => cellWeights[code]);
    this.means = Float32Array.from(await inflated(head.mean.picture), code => meanWeights[code]);
    this.windows = [];
    for (const window of head.windows) this.windows.push(await weightsOf(window));
    this.nearest = [];  // { distance, weights } of each row, its own token's first
    for (const [n, text] of head.nearest.entries())
      this.nearest.push({ distance: head.distances[n], weights: await weightsOf(text) });
    this.ranks = [];  // { keys, weights } of each row, the largest first; key 2^24 - 1 where there are fewer
    for (const text of head.ranks) {
      const bytes = await inflated(text);
      const weights = Float32Array.from(fromPlanes(bytes.subarray(3 * count.query), 2), code => singleWeights[code]);
      this.ranks.push({ keys: fromPlanes(bytes.subarray(0, 3 * count.query), 3), weights });
    }
    if (!head.entropy) return;
    const floats = async text => new Float32Array(fromPlanes(await inflated(text), 4).buffer);
    this.entropy = await floats(head.entropy);
    this.received = await floats(head.received);
  }

  get ready() {
    return this.done === 1;
  }

  get busy() {
    return !this.ready;
  }

  get outlined() {
    return windows;
  }

  /** True where single weights are drawn, as far as they are known: in a window, and close to. */
  isSingle(part, rows, columns) {
    const { spans } = part;
    if (windows.some(window => holds(window, part))) return true;
    if (this.ranks.length + this.nearest.length === 0) return false;
    if (rows === spans.query && columns === spans.key) return true;
    const block = (axis, cells, bands) => count[axis] / cells * bands / spans[axis];
    return Math.max(block('query', data.pooled.rows, rows), block('key', data.pooled.columns, columns)) > BLOCK;
  }

  picture(part, rows, columns) {
    if (this.isSingle(part, rows, columns)) return this.single(part, rows, columns);
    if (state.pool === 'mean') return this.mean(part, rows, columns);
    const largest = new Float32Array(rows * columns), across = this.cellsOf('key', part, columns);
    this.cellsOf('query', part, rows).forEach(([top, bottom], r) => across.forEach(([left, right], c) => {
      let most = 0;
      for (let y = top; y <= bottom; ++y)
        for (let x = left; x <= right; ++x) most = Math.max(most, this.cells[y * data.pooled.columns + x]);
      largest[r * columns + c] = most;
    }));
    return largest;
  }

  isMean(part, rows, columns) {
    return state.pool === 'mean' && !this.isSingle(part, rows, columns);
  }

  /** The mean over the tokens of each band; within a cell of the picture all are its mean. */
  mean(part, rows, columns) {
    const { mean_rows: cellRows, mean_columns: cellColumns } = data.pooled, means = new Float32Array(rows * columns);
    const shares = { query: this.sharesOf('query', part, rows, cellRows),
                     key: this.sharesOf('key', part, columns, cellColumns) };
    shares.query.forEach((high, r) => shares.key.forEach((wide, c) => {
      for (const [y, down] of high)
        for (const [x, right] of wide) means[r * columns + c] += down * right * this.means[y * cellColumns + x];
    }));
    return means;
  }

  /** Of each band of a part the cells that it has tokens of, and the share of its tokens that is there. */
  sharesOf(axis, part, bands, cells) {
    const begin = cell => Math.ceil(cell * count[axis] / cells);
    return Array.from({ length: bands }, (_, band) => {
      const [low, high] = bandOf(band, bands, part.spans[axis]).map(t => t + part[axis]), shares = [];
      for (let cell = Math.floor(low * cells / count[axis]); cell < cells && begin(cell) < high; ++cell)
        shares.push([cell, (Math.min(begin(cell + 1), high) - Math.max(begin(cell), low)) / (high - low)]);
      return shares;
    });
  }

  /** The first and the last cell of the picture that each band of a part has tokens of. */
  cellsOf(axis, part, bands) {
    const cells = axis === 'query' ? data.pooled.rows : data.pooled.columns;
    const cell = t => Math.floor(t * cells / count[axis]);
    return Array.from({ length: bands }, (_, band) => {
      const [first, end] = bandOf(band, bands, part.spans[axis]);
      return [cell(part[axis] + first), cell(part[axis] + end - 1)];
    });
  }

  /** What none of the tokens of a band can see, or has more than 2^-32 for, is 0; the rest is known, or NaN. */
  single(part, rows, columns) {
    const { query, key, spans } = part, largest = new Float32Array(rows * columns).fill(NaN);
    for (let r = 0; r < rows; ++r) {
      const [top, bottom] = bandOf(r, rows, spans.query).map(i => i + query);
      let most = 0;
      for (let i = top; i < bottom; ++i) most = Math.max(most, this.bound(i));
      for (let c = 0; c < columns; ++c) {
        const [left, right] = bandOf(c, columns, spans.key).map(j => j + key);
        const isHidden = left - bottom + 1 > this.reach[1] || right - 1 - top < this.reach[0];
        if (most === 0 || isHidden) largest[r * columns + c] = 0;
      }
    }
    this.eachKnown(part, (i, j, weight) => {
      const at = Math.floor((i - query) * rows / spans.query) * columns +
        Math.floor((j - key) * columns / spans.key);
      if (!(largest[at] >= weight)) largest[at] = weight;
    });
    return largest;
  }

  /** What a weight of this row that is not known is at most. */
  bound(query) {
    return this.ranks.at(-1)?.weights[query] ?? 1;
  }

  unknown({ query, spans }) {
    return spans || this.ranks.length === 0 ? 'not known' : `not known: at most ${digits(this.bound(query))}`;
  }

  /** body(query, key, weight) of all pairs of a part that are known, of some more than once. */
  eachKnown({ query, key, spans }, body) {
    const bottom = query + spans.query, right = key + spans.key;
    for (const { keys, weights } of this.ranks) {
      for (let i = query; i < bottom; ++i)
        if (keys[i] >= key && keys[i] < right) body(i, keys[i], weights[i]);
    }
    for (const { distance, weights } of this.nearest) {
      const last = Math.min(bottom, right - distance, count.key - distance);
      for (let i = Math.max(query, key - distance, -distance); i < last; ++i) body(i, i + distance, weights[i]);
    }
    windows.forEach((window, n) => {
      const { key: keys } = window.spans, end = { query: window.query + window.spans.query, key: window.key + keys };
      for (let i = Math.max(window.query, query); i < Math.min(end.query, bottom); ++i)
        for (let j = Math.max(window.key, key); j < Math.min(end.key, right); ++j)
          body(i, j, this.windows[n][(i - window.query) * keys + j - window.key]);
    });
  }

  line(axis, t) {
    const part = { query: 0, key: 0, spans: { ...count }, [axis]: t };
    part.spans[axis] = 1;
    return this.single(part, part.spans.query, part.spans.key);
  }

  /** A known weight that is as large as the cell says is its largest. */
  largest(part, weight) {
    let best = null;
    if (state.pool === 'mean') return best;
    this.eachKnown(part, (query, key, one) => {
      if (!best || one > best.weight) best = { query, key, weight: one };
    });
    return best && best.weight > weight * 0.966 ? best : null;
  }

  note(part, rows, columns) {
    const group = (axis, cells) => Math.ceil(count[axis] / cells);
    if (windows.some(window => holds(window, part))) return 'An exact window: every weight is known, within 0.017 %.';
    if (this.isSingle(part, rows, columns)) return `Known and drawn: ${singles(this).join(', ')}. Hatched: not known${
      this.ranks.length ? ', at most the smallest of these of its row' : ''}.`;
    if (state.pool === 'mean')
      return `Cells show the mean of ${group('query', data.pooled.mean_rows)} \u00d7 ${
        group('key', data.pooled.mean_columns)} weights or of more, within 4.5 %.`;
    return `Cells show the largest of ${group('query', data.pooled.rows)} \u00d7 ${
      group('key', data.pooled.columns)} weights or of more, within 3.4 %.`;
  }

  numbers(axis, t) {
    if (!this.entropy) return [];
    return axis === 'query' ? [`entropy ${this.entropy[t].toPrecision(3)} nats`]
      : [`receives ${this.received[t].toPrecision(3)} in all`];
  }

  vectors() {
    return undefined;
  }
}

/** Which weights of each row a head has, as texts. */
function singles({ ranks, nearest }) {
  const list = [];
  const some = ({ length }) => (length > 1 ? `the ${length}` : 'the');
  if (ranks.length) list.push(`${some(ranks)} largest of each row`);
  if (nearest.length) list.push(`${some(nearest)} nearest its own token`);
  return list;
}

kinds.pooled = {
  Head: PooledHead,
  mostHeads: 8,
  thumbnail: head => Float32Array.from(bytesOf(head.thumbnail), code => cellWeights[code]),
  precision: () => {
    const heads = layers.flatMap(layer => layer.heads), list = [];
    if (heads.some(({ ranks }) => ranks.length)) list.push('the largest of each row');
    if (heads.some(({ nearest }) => nearest.length)) list.push('those nearest its own token');
    if (windows.length) list.push(plural(windows.length, 'outlined window'));
    return `Pooled: pictures of ${data.pooled.rows} \u00d7 ${data.pooled.columns} within 3.4 %; ${
      list.length ? `single weights within 0.017 %: ${list.join(', ')}` : 'no single weights'}`;
  },
};

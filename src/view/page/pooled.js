// -------------------------------------------------------------------------------------------------------------- pooled
// The heads of a page that is too long for its q and k: a picture of the largest weights of rectangles, and the largest
// weights of each row. page_pooled.cpp packs them.

const logTable = (bits, range) => {
  const last = 2 ** bits - 1;
  return Float32Array.from({ length: last + 1 }, (_, code) => (code ? 2 ** (range * (code - last) / (last - 1)) : 0));
};
const cellWeights = logTable(8, 24);
const BLOCK = 8;  // pixels of a cell of the picture; where one would be larger, single weights are drawn

async function inflated(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream('deflate'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Numbers whose bytes stand in planes, all lowest bytes first. */
function fromPlanes(bytes, planes) {
  const length = bytes.length / planes, numbers = new Uint32Array(length);
  for (let plane = 0; plane < planes; ++plane)
    for (let n = 0; n < length; ++n) numbers[n] |= bytes[plane * length + n] << 8 * plane;
  return numbers;
}

class PooledHead {
  constructor(layer, head, arrived) {
    this.head = head;
    this.done = 0;
    this.unpack().then(() => {
      this.done = 1;
      arrived();
    });
  }

  async unpack() {
    const { head } = this;
    this.cells = Float32Array.from(await inflated(head.picture), code => cellWeights[code]);
    if (data.pooled.lines) {
      const floats = async text => new Float32Array(fromPlanes(await inflated(text), 4).buffer);
      this.entropy = await floats(head.entropy);
      this.received = await floats(head.received);
    }
    if (!data.pooled.top) return;
    const bytes = await inflated(head.top), entries = count.query * data.pooled.top, table = logTable(16, 32);
    this.keys = fromPlanes(bytes.subarray(0, 3 * entries), 3);  // 2^24 - 1 where there are fewer
    this.weights = Float32Array.from(fromPlanes(bytes.subarray(3 * entries), 2), code => table[code]);
  }

  get ready() {
    return this.done === 1;
  }

  get busy() {
    return !this.ready;
  }

  /** True where single weights are drawn, as far as they are known. */
  isSingle({ spans }, rows, columns) {
    if (!data.pooled.top) return false;
    if (rows === spans.query && columns === spans.key) return true;
    const block = (axis, cells, bands) => count[axis] / cells * bands / spans[axis];
    return Math.max(block('query', data.pooled.rows, rows), block('key', data.pooled.columns, columns)) > BLOCK;
  }

  picture(part, rows, columns) {
    if (this.isSingle(part, rows, columns)) return this.single(part, rows, columns);
    const largest = new Float32Array(rows * columns), across = this.cellsOf('key', part, columns);
    this.cellsOf('query', part, rows).forEach(([top, bottom], r) => across.forEach(([left, right], c) => {
      let most = 0;
      for (let y = top; y <= bottom; ++y)
        for (let x = left; x <= right; ++x) most = Math.max(most, this.cells[y * data.pooled.columns + x]);
      largest[r * columns + c] = most;
    }));
    return largest;
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

  single({ query, key, spans }, rows, columns) {
    const largest = new Float32Array(rows * columns).fill(NaN);
    this.eachKnown({ query, key, spans }, (i, j, weight) => {
      const at = Math.floor((i - query) * rows / spans.query) * columns +
        Math.floor((j - key) * columns / spans.key);
      if (!(largest[at] >= weight)) largest[at] = weight;
    });
    return largest;
  }

  eachKnown({ query, key, spans }, body) {
    const { top } = data.pooled;
    for (let at = query * top; at < (query + spans.query) * top; ++at) {
      const j = this.keys[at];
      if (j >= key && j < key + spans.key) body(Math.floor(at / top), j, this.weights[at]);
    }
  }

  line(axis, t) {
    const line = new Float32Array(count[across[axis]]).fill(NaN);
    if (!data.pooled.top) return line;
    const part = { query: 0, key: 0, spans: { ...count }, [axis]: t };
    part.spans[axis] = 1;
    this.eachKnown(part, (i, j, weight) => line[axis === 'query' ? j : i] = weight);
    return line;
  }

  /** A known weight that is as large as the cell says is its largest. */
  largest(part, weight) {
    let best = null;
    if (data.pooled.top) {
      this.eachKnown(part, (query, key, one) => {
        if (!best || one > best.weight) best = { query, key, weight: one };
      });
    }
    return best && best.weight > weight * 0.966 ? best : null;
  }

  note(part, rows, columns) {
    if (this.isSingle(part, rows, columns))
      return `Of each row the ${data.pooled.top} largest weights are known and drawn.`;
    const group = (axis, cells) => Math.ceil(count[axis] / cells);
    return `Cells show the largest of ${group('query', data.pooled.rows)} \u00d7 ${
      group('key', data.pooled.columns)} weights or of more, within 3.4 %.`;
  }

  numbers(axis, t) {
    if (!data.pooled.lines) return [];
    return axis === 'query' ? [`entropy ${this.entropy[t].toPrecision(3)} nats`]
      : [`receives ${this.received[t].toPrecision(3)} in all`];
  }

  vectors() {
    return undefined;
  }
}

kinds.pooled = {
  Head: PooledHead,
  thumbnail: head => Float32Array.from(bytesOf(head.thumbnail), code => cellWeights[code]),
  precision: () => `Pooled: pictures of ${data.pooled.rows} \u00d7 ${data.pooled.columns} within 3.4 %; ${
    data.pooled.top ? `the ${data.pooled.top} largest weights of each row within 0.017 %` : 'no single weights'}`,
};

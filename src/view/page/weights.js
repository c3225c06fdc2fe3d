// ------------------------------------------------------------------------------------------------------------- weights
// The heads of an exact page. A weight is exp(cap(scale <q, k>) + added - lse), computed here. page_data.h says how
// numbers are packed.

function bytesOf(base64) {
  const text = atob(base64), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; ++i) bytes[i] = text.charCodeAt(i);
  return bytes;
}

/** Unsigned numbers of 24 bits. */
function wholeNumbers(bytes) {
  const numbers = new Uint32Array(bytes.length / 3);
  for (let i = 0, at = 0; i < numbers.length; ++i, at += 3) {
    numbers[i] = bytes[at] | bytes[at + 1] << 8 | bytes[at + 2] << 16;
  }
  return numbers;
}

/** Queries or keys [n, D]. */
function vectorsOf(base64, n) {
  const bytes = bytesOf(base64);
  const largest = new Float64Array(bytes.buffer, 0, n), codes = wholeNumbers(bytes.subarray(8 * n));
  const width = codes.length / n;
  return Float64Array.from(codes, (code, i) => (code - 2 ** 23) / (2 ** 23 - 1) * largest[Math.floor(i / width)]);
}

/** Row after row of what the options add to the scores: -Infinity where a pair is not allowed. */
function* addedRows(base64) {
  const words = new Uint32Array(bytesOf(base64).buffer), numbers = new Float32Array(words.buffer), n = count.key;
  let at = 0, foretold = 0, others = 0;
  let above = null, row = new Float64Array(n), spare = new Float64Array(n);
  for (;;) {
    for (let j = 0; j < n; ++j) {
      if (foretold === 0 && others === 0) {
        foretold = words[at++];
        others = words[at++];
      }
      if (foretold > 0) {
        --foretold;
        row[j] = above ? above[Math.max(j - 1, 0)] : j > 0 ? row[j - 1] : 0;
      } else {
        --others;
        row[j] = numbers[at++];
      }
    }
    yield row;
    [above, row, spare] = [row, above ?? spare, spare];
  }
}

/** Row after row of one head's weights; the array is used again for the next. */
function* headRows(layer, head) {
  const { q, k, width } = vectorsOfHead(layer, head), lse = new Float64Array(bytesOf(head.lse).buffer);
  const added = addedRows(layer.added[head.added]), weights = new Float64Array(count.key);
  const { scale, softcap } = layer;
  for (let i = 0; i < count.query; ++i) {
    const more = added.next().value;
    for (let j = 0; j < count.key; ++j) {
      weights[j] = 0;
      if (more[j] === -Infinity || !Number.isFinite(lse[i])) continue;
      let score = 0;
      for (let a = i * width, b = j * width, end = a + width; a < end; ++a, ++b) score += q[a] * k[b];
      score *= scale;
      if (softcap > 0) score = softcap * Math.tanh(score / softcap);
      const weight = Math.exp(score + more[j] - lse[i]);
      if (weight > 0) weights[j] = Math.min(weight, 1);  // NaN, too, is 0: a row that is not finite attends to nothing
    }
    yield weights;
  }
}

function vectorsOfHead(layer, head) {
  const q = vectorsOf(head.q, count.query), k = vectorsOf(layer.keys[head.keys], count.key);
  return { q, k, width: q.length / count.query };
}

/** Fills a matrix with the weights of a head, or with the mean of all of a layer's; yields the rows that are done. */
function* fill(matrix, layer, head) {
  const heads = head.name === 'mean' ? layer.heads.filter(({ name }) => name !== 'mean') : [head], n = count.key;
  const sources = heads.map(one => headRows(layer, one));
  for (let i = 0; i < count.query; ++i) {
    const row = matrix.subarray(i * n, (i + 1) * n);
    for (const source of sources) {
      const weights = source.next().value;
      for (let j = 0; j < n; ++j) row[j] += weights[j] / heads.length;
    }
    yield i + 1;
  }
}

const SLICE = 30;  // milliseconds of computing before the page may react

/** A head whose weights are computed here, all of them, before there is anything to draw. */
class ComputedHead {
  constructor(layer, head, arrived) {
    this.layer = layer;
    this.head = head;
    this.matrix = new Float32Array(count.query * count.key);
    const rows = fill(this.matrix, layer, head);
    const slice = () => {
      const until = performance.now() + SLICE;
      let state;
      do state = rows.next(); while (!state.done && performance.now() < until);
      this.done = state.done ? 1 : state.value / count.query;
      if (state.done) return;
      setTimeout(() => {
        if (this.isLeft) return;  // other heads are wanted by now
        slice();
        arrived();
      });
    };
    slice();
  }

  get ready() {
    return this.done === 1;
  }

  get busy() {
    return !this.ready;
  }

  picture({ query, key, spans }, rows, columns) {
    const largest = new Float32Array(rows * columns), place = new Int32Array(spans.key);
    for (let j = 0; j < spans.key; ++j) place[j] = Math.floor(j * columns / spans.key);
    for (let i = 0; i < spans.query; ++i) {
      const row = (query + i) * count.key + key, to = Math.floor(i * rows / spans.query) * columns;
      for (let j = 0; j < spans.key; ++j) {
        const at = to + place[j];
        if (this.matrix[row + j] > largest[at]) largest[at] = this.matrix[row + j];
      }
    }
    return largest;
  }

  line(axis, t) {
    if (axis === 'query') return this.matrix.subarray(t * count.key, (t + 1) * count.key);
    return Float32Array.from({ length: count.query }, (_, i) => this.matrix[i * count.key + t]);
  }

  largest({ query, key, spans }) {
    let best = { query, key, weight: -1 };
    for (let i = query; i < query + spans.query; ++i) {
      for (let j = key; j < key + spans.key; ++j) {
        const weight = this.matrix[i * count.key + j];
        if (weight > best.weight) best = { query: i, key: j, weight };
      }
    }
    return best;
  }

  note({ spans }, rows, columns) {
    if (rows === spans.query && columns === spans.key) return '';
    const group = (span, bands) => Math.ceil(span / bands);
    return `A pixel shows the largest of ${group(spans.query, rows)} × ${group(spans.key, columns)} weights.`;
  }

  numbers(axis, t) {
    return numbersOf(axis, this.line(axis, t));
  }

  vectors(query, key) {
    if (this.head.name === 'mean') return undefined;
    this.both ??= vectorsOfHead(this.layer, this.head);
    const { q, k, width } = this.both;
    return { q: q.subarray(query * width, (query + 1) * width), k: k.subarray(key * width, (key + 1) * width),
             scale: this.layer.scale };
  }
}

kinds.exact = {
  Head: ComputedHead,
  mostHeads: Math.max(Math.floor(2 ** 26 / (count.query * count.key)), 1),
  thumbnail: head => Float32Array.from(wholeNumbers(bytesOf(head.thumbnail)), code => code / (2 ** 24 - 1)),
  precision: () => 'Weights are computed here from q, k and lse: off by at most ' +
    `${data.error.toPrecision(2)} of themselves`,
};

// ------------------------------------------------------------------------------------------------------------- weights
// A weight is exp(cap(scale <q, k>) + added - lse), computed here. page_data.h says how numbers are packed.

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
function vectorsOf(base64) {
  const bytes = bytesOf(base64);
  const largest = new Float64Array(bytes.buffer, 0, n), codes = wholeNumbers(bytes.subarray(8 * n));
  const width = codes.length / n;
  return Float64Array.from(codes, (code, i) => (code - 2 ** 23) / (2 ** 23 - 1) * largest[Math.floor(i / width)]);
}

/** The thumbnail of a head: square. */
const thumbnailOf = head => Float32Array.from(wholeNumbers(bytesOf(head.thumbnail)), code => code / (2 ** 24 - 1));

/** Row after row of what the options add to the scores: -Infinity where a pair is not allowed. */
function* addedRows(base64) {
  const words = new Uint32Array(bytesOf(base64).buffer), numbers = new Float32Array(words.buffer);
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
  const q = vectorsOf(head.q), k = vectorsOf(layer.keys[head.keys]), lse = new Float64Array(bytesOf(head.lse).buffer);
  const added = addedRows(layer.added[head.added]), weights = new Float64Array(n);
  const { scale, softcap } = layer, width = q.length / n;
  for (let i = 0; i < n; ++i) {
    const more = added.next().value;
    for (let j = 0; j < n; ++j) {
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

/** Fills a matrix with the weights of a head, or with the mean of all of a layer's; yields the rows that are done. */
function* fill(matrix, layer, head) {
  const heads = head.name === 'mean' ? layer.heads.filter(({ name }) => name !== 'mean') : [head];
  const sources = heads.map(one => headRows(layer, one));
  for (let i = 0; i < n; ++i) {
    const row = matrix.subarray(i * n, (i + 1) * n);
    for (const source of sources) {
      const weights = source.next().value;
      for (let j = 0; j < n; ++j) row[j] += weights[j] / heads.length;
    }
    yield i + 1;
  }
}

const SLICE = 30;  // milliseconds of computing before the page may react
let latest = 0;

/** Calls done(matrix) with the weights of a head: at once if that is quick, otherwise progress(rows) comes before. */
function computeHead(layer, head, progress, done) {
  const call = ++latest, matrix = new Float32Array(n * n), rows = fill(matrix, layer, head);
  const slice = () => {
    if (call !== latest) return;  // another head is wanted by now
    const until = performance.now() + SLICE;
    let state;
    do state = rows.next(); while (!state.done && performance.now() < until);
    if (state.done) return done(matrix);
    progress(state.value);
    setTimeout(slice);
  };
  slice();
}

/** Five digits: how finely q and k are kept. */
const digits = weight => (weight === 0 ? '0' : weight.toPrecision(5));


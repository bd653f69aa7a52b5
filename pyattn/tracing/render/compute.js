// Attention in float64, step by step, as pyattn.trace computes it. A matrix is {r, c, a}: its rows, its columns and its
// numbers, one row after the other, always with one input per row. i is a query, j a key, d a feature.
const attention = function (data) {
  const PROJECTED = {keys: "key", queries: "query", values: "value"};
  let given = {}, memo = {};

  function bytes(text) {
    return Uint8Array.from(atob(text), c => c.charCodeAt(0));
  }
  function decode([r, c, text]) {
    const view = new DataView(bytes(text).buffer), a = new Float64Array(r * c);
    const wide = view.byteLength === 8 * a.length;
    a.forEach((_, n) => { a[n] = wide ? view.getFloat64(8 * n, true) : view.getFloat32(4 * n, true); });
    return {r, c, a};
  }
  function reset() {
    given = {scale: {r: 1, c: 1, a: [data.scale]}};
    memo = {};
    for (const name of Object.keys(data.m)) given[name] = decode(data.m[name]);
    if (data.visible === null && !data.editable) return;
    const [r, c] = data.size, bits = data.visible === null ? null : bytes(data.visible);
    const bit = n => bits === null ? 1 : bits[n >> 3] >> (7 - n % 8) & 1;
    given.visible = {r, c, a: Float64Array.from({length: r * c}, (_, n) => bit(n))};
  }
  function remember(name, compute) {
    if (!(name in memo)) memo[name] = compute();
    return memo[name];
  }

  // A matrix that the page holds, or a projection of the inputs; null if the matrices are too large for a page.
  function matrix(name) {
    if (given[name]) return given[name];
    const w = PROJECTED[name];
    if (!w || !given.x || !given["w_" + w]) return null;
    return remember(name, () => product(given.x, given["w_" + w], given["b_" + w]));
  }
  function product(A, B, bias) {
    const a = new Float64Array(A.r * B.c);
    for (let i = 0; i < A.r; i++) for (let j = 0; j < B.c; j++) {
      let sum = 0;
      for (let k = 0; k < A.c; k++) sum += A.a[i * A.c + k] * B.a[k * B.c + j];
      a[i * B.c + j] = sum + (bias ? bias.a[j] : 0);
    }
    return {r: A.r, c: B.c, a};
  }
  const row = (A, i) => Array.from(A.a.slice(i * A.c, i * A.c + A.c));
  const column = (A, j) => Array.from({length: A.r}, (_, i) => A.a[i * A.c + j]);
  const at = (A, i, j) => A.a[i * A.c + j];
  const times = (q, W) => row(product({r: 1, c: q.length, a: q}, W), 0);

  // Steps 4 to 7, for one query.
  function direction(v) {
    const large = v.reduce((most, x) => Math.max(most, Math.abs(x)), 0) || 1;
    const unit = v.map(x => x / large), length = Math.sqrt(unit.reduce((sum, x) => sum + x * x, 0));
    return unit.map(x => x / (length === 0 ? 1 : length));
  }
  function unscaled(q, k) {
    const W = given.score_weight;
    if (data.score === "bilinear") q = times(q, W);
    if (data.score === "cosine") { q = direction(q); k = direction(k); }
    const term = {
      distance: d => -((q[d] - k[d]) ** 2),
      additive: d => W.a[d] * Math.tanh(q[d] + k[d]),
    }[data.score] || (d => q[d] * k[d]);
    let sum = 0;
    for (let d = 0; d < q.length; d++) sum += term(d);
    return sum;
  }
  const score = (q, k) => given.scale.a[0] * unscaled(q, k);
  function seen(i, j) {
    const mask = given.visible, bias = given.attn_bias;
    return !(mask && !at(mask, i, j)) && !(bias && at(bias, i, j) === -Infinity);
  }
  function scores(i) {
    const Q = matrix("queries"), K = matrix("keys"), bias = given.attn_bias;
    if (!Q || !K) return null;
    return remember("scores " + i, () => Array.from({length: K.r}, (_, j) =>
      seen(i, j) ? score(row(Q, i), row(K, j)) + (bias ? at(bias, i, j) : 0) : -Infinity));
  }
  function softmax(s) {
    const top = s.reduce((most, x) => Math.max(most, x), -Infinity);  // subtracted: exp does not overflow
    const exps = s.map(x => Math.exp(x - top)), sum = exps.reduce((sum, x) => sum + x, 0);
    return exps.map(x => x / sum);
  }
  function sparsemax(s) {
    const top = s.reduce((most, x) => Math.max(most, x), -Infinity), below = s.map(x => x - top);
    const sorted = below.slice().sort((x, y) => y - x);
    let sum = 0, count = 0;
    while (count < s.length && 1 + (count + 1) * sorted[count] > sum + sorted[count]) sum += sorted[count++];
    return below.map(x => Math.max(x - (sum - 1) / count, 0));
  }
  function exactWeights(s) {
    const every = {softmax, sparsemax, sigmoid: s => s.map(x => 1 / (1 + Math.exp(-x)))}[data.normalize](s);
    return every.map((w, j) => s[j] === -Infinity ? 0 : w);
  }
  function even(x) {
    const low = Math.floor(x), part = x - low;
    return part > 0.5 || (part === 0.5 && low % 2) ? low + 1 : low;
  }
  // Rounds to integers over `below`, so that each query's weights keep their sum: the largest remainders go up.
  function rounded(weights, below) {
    const exact = weights.map(w => w * below), floor = exact.map(Math.floor), add = (sum, x) => sum + x;
    const missing = even(exact.reduce(add, 0)) - floor.reduce(add, 0) || 0;
    exact.map((x, j) => [floor[j] - x, j]).sort((x, y) => x[0] - y[0] || x[1] - y[1]).slice(0, missing)
      .forEach(([, j]) => { floor[j]++; });
    return floor;
  }
  const below = data.rounded === null || data.m.weights ? 1 : 10 ** data.rounded;
  function numerators(i) {
    if (given.weights) return row(given.weights, i);
    const s = scores(i);
    if (!s) return null;
    return remember("numerators " + i, () => below === 1 && data.rounded === null
      ? exactWeights(s) : rounded(exactWeights(s), below));
  }
  function weights(i) {
    const n = numerators(i);
    return n && n.map(x => x / below);
  }
  function weighted(i) {
    const V = matrix("values");
    return numerators(i).map((n, j) => row(V, j).map(v => seen(i, j) ? v * n / below : 0));
  }
  function output(i) {
    const V = matrix("values"), n = numerators(i);
    if (data.empty === "nan" && scores(i).every(s => s === -Infinity)) return row(V, 0).map(() => NaN);
    return row(V, 0).map((_, d) =>
      n.reduce((sum, x, j) => seen(i, j) ? sum + x * at(V, j, d) : sum, 0) / below);
  }

  function set(name, i, j, number) {
    given[name].a[i * given[name].c + j] = number;
    memo = {};
  }
  // A result, by its name in a trace, as a matrix; weighted_values as one matrix for each query.
  function result(name) {
    const perQuery = {scores, weights, outputs: output}[name];
    if (!perQuery && name !== "weighted_values") return matrix(name);
    const rows = Array.from({length: matrix("queries").r}, (_, i) => (perQuery || weighted)(i));
    return perQuery ? {r: rows.length, c: rows[0].length, a: rows.flat()} : rows;
  }
  reset();
  const queries = {unscaled, score, scores, weights, weighted, output, seen};
  return {data, matrix, result, row, column, at, times, direction, set, reset, ...queries};
};

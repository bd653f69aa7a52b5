// How a gradient is explained: as in about.js, from the gradients that the page holds.
const aboutBackward = function (model) {
  const {data, matrix, row, column, at} = model, forward = aboutForward(model);
  const {text, factor, vector, sum, products, label, LARGE} = wording(data);
  const OF = {keys: "key", queries: "query", values: "value"};
  const scale = matrix("scale").a[0], times = scale === 1 ? "" : text(scale) + " \u00d7 ";
  const number = (name, i, j) => text(at(matrix(name), i, j));
  const all = (name, count) => Array.from({length: count}, (_, i) => model[name](i));
  const place = (name, i, j) => OF[name] + " " + label(name === "queries" ? "q" : "k", i) + ", number " + (j + 1);
  const dot = (a, b) => sum(products(a, b));
  const scaled = terms => times ? times + "(" + terms + ")" : terms;
  const seen = (i, j) => model.scores(i)[j] !== -Infinity;
  const HIDDEN = "hidden by the mask: 0", ALL_HIDDEN = "every key is hidden by the mask: 0";
  const CHANGES = "each score " + (times ? "before scaling " : "") + "changes by ";
  const EACH_QUERY = "for each query, the sum over the keys of grad_scores \u00d7 ";

  function aboutWeights(i, j) {
    const grad = row(matrix("grad_outputs"), i), value = row(matrix("values"), j);
    const head = "gradient of the weight of key " + label("k", j) + " for query " + label("q", i);
    if (!seen(i, j)) return [head + "\n" + HIDDEN, []];
    return [head + "\ngradient of output " + vector(grad) + "\nvalue " + vector(value) + "\n" + dot(grad, value) + " = " +
      number("grad_weights", i, j), [["grad_outputs", i, -1], ["values", j, -1]]];
  }
  function aboutValues(j, d) {
    const grads = column(matrix("grad_outputs"), d), weights = all("weights", grads.length).map(w => w[j]);
    return ["gradient of " + place("values", j, d) + "\nits weights for each query " + vector(weights) +
      "\ngradients of their outputs " + vector(grads) + "\n" + dot(weights, grads) + " = " + number("grad_values", j, d),
      [["weights", -1, j], ["grad_outputs", -1, d]]];
  }
  function aboutDelta(i) {
    const weights = model.weights(i), grads = row(matrix("grad_weights"), i);
    const from = [["weights", i, -1], ["grad_weights", i, -1]], head = "delta of query " + label("q", i) + "\n";
    if (data.normalize === "softmax")
      return [head + "weights times their gradients\n" + dot(weights, grads) + " = " + number("delta", i, 0), from];
    const above = grads.filter((_, j) => weights[j] > 0);
    if (!above.length) return [head + ALL_HIDDEN, from];
    return [head + "mean gradient of the weights above 0\n(" + sum(above.map(factor)) + ") / " + above.length + " = " +
      number("delta", i, 0), from];
  }
  function aboutScores(i, j) {
    const head = "gradient of the score of query " + label("q", i) + " and key " + label("k", j) + "\n";
    if (!seen(i, j)) return [head + HIDDEN, []];
    const weight = model.weights(i)[j], grad = at(matrix("grad_weights"), i, j), equals = " = " + number("grad_scores", i, j);
    const from = [["weights", i, j], ["grad_weights", i, j], ["delta", i, 0]];
    if (data.normalize === "sigmoid")
      return [head + factor(weight) + " \u00d7 (1 - " + factor(weight) + ") \u00d7 " + factor(grad) + equals, from];
    const less = text(grad) + " - " + factor(at(matrix("delta"), i, 0));
    if (data.normalize === "softmax") return [head + factor(weight) + " \u00d7 (" + less + ")" + equals, from];
    return [head + (weight > 0 ? less + equals : "its weight is 0, and stays 0 when the score changes a little: 0"), from];
  }
  // How each score changes with number d of a query or a key, before scaling: a line for it, and the cells it reads.
  function aboutSlopes(ofQuery, i, d, pairs) {
    const others = ofQuery ? "keys" : "queries", q = ofQuery ? "q" : "k", k = ofQuery ? "k" : "q";
    const own = row(matrix(ofQuery ? "queries" : "keys"), i), vectors = pairs.map(n => row(matrix(others), n));
    const W = matrix("score_weight"), numbers = vectors.map(v => v[d]), n = d + 1;
    const both = [[ofQuery ? "queries" : "keys", i, d], [others, -1, d]];
    if (data.score === "dot") return ["numbers of the " + others, numbers, [[others, -1, d]]];
    if (data.score === "distance")
      return [CHANGES + "-2 \u00d7 (" + q + " - " + k + ")", numbers.map(x => -2 * (own[d] - x)), both];
    if (data.score === "additive") {
      const slopes = numbers.map(x => W.a[d] * (1 - Math.tanh(own[d] + x) ** 2));
      return [CHANGES + "w \u00d7 (1 - tanh(q + k)\u00b2), w = " + text(W.a[d]), slopes,
        [...both, ["score_weight", 0, d]]];
    }
    if (data.score === "bilinear") {
      const weights = ofQuery ? row(W, d) : column(W, d);
      const slopes = vectors.map(v => v.reduce((total, x, m) => total + x * weights[m], 0));
      return [CHANGES + "number " + n + " of " + (ofQuery ? "W k" : "q W"), slopes,
        [[others, -1, -1], ofQuery ? ["score_weight", d, -1] : ["score_weight", -1, d]]];
    }
    const unit = model.direction(own), length = Math.hypot(...own);
    const cosines = vectors.map(v => model.unscaled(own, v)), units = vectors.map(v => model.direction(v)[d]);
    const slopes = units.map((u, m) => length === 0 ? 0 : (u - cosines[m] * unit[d]) / length);
    return ["cosines " + vector(cosines) + "\nnumbers " + n + " of " + k + "/|" + k + "| " + vector(units) +
      "\nnumber " + n + " of " + q + "/|" + q + "| is " + text(unit[d]) + ", and |" + q + "| is " + text(length) +
      "\n" + CHANGES + "(" + k + "/|" + k + "| - cosine \u00d7 " + q + "/|" + q + "|) / |" + q + "|", slopes,
      [[ofQuery ? "queries" : "keys", i, -1], [others, -1, -1]]];
  }
  function aboutQueriesOrKeys(name, i, d) {
    const ofQuery = name === "queries", g = ofQuery ? row(matrix("grad_scores"), i) : column(matrix("grad_scores"), i);
    const from = [["grad_scores", ...(ofQuery ? [i, -1] : [-1, i])], ["scale", 0, 0]];
    const head = "gradient of " + place(name, i, d) + "\n";
    const visible = g.map((_, n) => n).filter(n => ofQuery ? seen(i, n) : seen(n, i));
    if (!visible.length) return [head + (ofQuery ? ALL_HIDDEN : "hidden from every query: 0"), from];
    const [words, slopes, read] = aboutSlopes(ofQuery, i, d, visible), grads = visible.map(n => g[n]);
    return [head + "gradients of its scores " + vector(grads) + "\n" + words + " " + vector(slopes) + "\n" +
      scaled(dot(grads, slopes)) + " = " + number("grad_" + name, i, d), [...from, ...read]];
  }
  // For each query that attends to a key, the sum over its keys of grad_scores times a number of the pair.
  function sumsOverKeys(numberOf) {
    const grads = matrix("grad_scores"), keys = Array.from({length: grads.c}, (_, j) => j);
    return Array.from({length: grads.r}, (_, i) => [i, keys.filter(j => seen(i, j))]).filter(([, js]) => js.length)
      .map(([i, js]) => ({i, sum: js.reduce((total, j) => total + at(grads, i, j) * numberOf(i, j), 0)}));
  }
  function aboutScoreWeight(a, b) {
    const Q = matrix("queries"), K = matrix("keys"), matrixOf = data.score === "bilinear";
    const head = "gradient of score_weight, number " + (matrixOf ? (a + 1) + ", " + (b + 1) : b + 1) + "\n";
    const sums = sumsOverKeys((i, j) => matrixOf ? at(K, j, b) : Math.tanh(at(Q, i, b) + at(K, j, b)));
    const totals = sums.map(one => one.sum), equals = " = " + number("grad_score_weight", a, b);
    const from = [["grad_scores", -1, -1], ["queries", -1, matrixOf ? a : b], ["keys", -1, b], ["scale", 0, 0]];
    if (!totals.length) return [head + ALL_HIDDEN, from];
    const start = head + EACH_QUERY;
    if (!matrixOf)
      return [start + "tanh(q + k) " + vector(totals) + "\n" + scaled(sum(totals.map(factor))) + equals, from];
    const numbers = sums.map(one => at(Q, one.i, a));
    return [start + "number " + (b + 1) + " of k " + vector(totals) + "\nnumbers " + (a + 1) + " of the queries " +
      vector(numbers) + "\n" + scaled(dot(numbers, totals)) + equals, from];
  }
  function aboutScale() {
    const Q = matrix("queries"), K = matrix("keys"), head = "gradient of the scale\n";
    const totals = sumsOverKeys((i, j) => model.unscaled(row(Q, i), row(K, j))).map(one => one.sum);
    const from = [["grad_scores", -1, -1], ["queries", -1, -1], ["keys", -1, -1]];
    if (!totals.length) return [head + ALL_HIDDEN, from];
    return [head + EACH_QUERY + "the score before scaling " + vector(totals) + "\n" + sum(totals.map(factor)) + " = " + number("grad_scale", 0, 0), from];
  }
  function aboutMatrix(name, a, b) {
    const w = name.slice(7), plural = Object.keys(OF).find(key => OF[key] === w), grads = matrix("grad_" + plural);
    const inputs = matrix("x").r, g = column(grads, b).slice(0, inputs), head = "gradient of " + name.slice(5);
    if (name[5] === "b") return [head + ", number " + (b + 1) + "\nsum over the inputs\n" + sum(g.map(factor)) + " = " +
      number(name, 0, b), [["grad_" + plural, -1, b]]];
    const x = column(matrix("x"), a);
    return [head + ", from number " + (a + 1) + " of x to number " + (b + 1) + "\nnumbers of x " + vector(x) +
      "\ngradients of the " + plural + " " + vector(g) + "\n" + dot(x, g) + " = " + number(name, a, b),
      [["x", -1, a], ["grad_" + plural, -1, b]]];
  }
  function aboutInput(i, a) {
    const parts = Object.entries(OF).map(([plural, w]) => {
      const grad = row(matrix("grad_" + plural), i), weights = row(matrix("w_" + w), a);
      return {words: "as a " + w + ": " + dot(grad, weights), from: [["grad_" + plural, i, -1], ["w_" + w, a, -1]]};
    });
    return ["gradient of input " + label("q", i) + ", number " + (a + 1) + "\n" + parts.map(part => part.words).join("\n+ ") +
      "\n= " + number("grad_x", i, a), parts.flatMap(part => part.from)];
  }

  return function (name, i, j, q) {
    if (name !== "delta" && !name.startsWith("grad_")) return forward(name, i, j, q);
    if (!matrix(name)) return [name + "\n" + LARGE, []];
    const of = name.replace("grad_", "");
    if (of === "outputs")
      return ["gradient of output " + label("q", i) + ", number " + (j + 1) + " = " + number(name, i, j) + "\ngiven", []];
    if (of === "weights") return aboutWeights(i, j);
    if (of === "values") return aboutValues(i, j);
    if (of === "delta") return aboutDelta(i);
    if (of === "scores") return aboutScores(i, j);
    if (of === "attn_bias") {
      const [words, from] = aboutScores(i, j);
      return ["the mask is added to the scores: the same gradient\n" + words, from];
    }
    if (of === "queries" || of === "keys") return aboutQueriesOrKeys(of, i, j);
    if (of === "scale") return aboutScale();
    if (of === "score_weight") return aboutScoreWeight(i, j);
    if (!matrix("x")) return [name + " = " + number(name, i, j) + "\n" + LARGE, []];
    if (of === "x") return aboutInput(i, j);
    return aboutMatrix(name, i, j);
  };
};

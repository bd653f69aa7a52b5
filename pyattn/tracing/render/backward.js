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
  function aboutQueriesOrKeys(name, i, d) {
    const ofQuery = name === "queries", other = matrix(ofQuery ? "keys" : "queries"), grads = matrix("grad_scores");
    const pairs = ofQuery ? [i, -1] : [-1, i];
    const from = [["grad_scores", ...pairs], ["scale", 0, 0]], head = "gradient of " + place(name, i, d) + "\n";
    const equals = number("grad_" + name, i, d);
    if (data.score !== "dot") {
      const others = ofQuery ? "keys" : "queries";
      return [head + "a sum over all " + others + ", by the formula above = " + equals,
        [...from, ["queries", ofQuery ? i : -1, -1], ["keys", ofQuery ? -1 : i, -1]]];
    }
    const g = ofQuery ? row(grads, i) : column(grads, i), numbers = column(other, d);
    const visible = g.map((_, n) => n).filter(n => ofQuery ? seen(i, n) : seen(n, i));
    const pick = v => visible.map(n => v[n]);
    if (!visible.length) return [head + (ofQuery ? ALL_HIDDEN : "hidden from every query: 0"), from];
    return [head + "gradients of its scores " + vector(pick(g)) + "\nnumbers of the " + (ofQuery ? "keys " : "queries ") +
      vector(pick(numbers)) + "\n" + scaled(dot(pick(g), pick(numbers))) + " = " + equals,
      [...from, [ofQuery ? "keys" : "queries", -1, d]]];
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
  function aboutScale() {
    return ["gradient of the scale\nsum over all pairs of grad_scores times the score before scaling = " +
      number("grad_scale", 0, 0), [["grad_scores", -1, -1]]];
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
    if (of === "x") return aboutInput(i, j);
    if (of === "scale") return aboutScale();
    if (of === "score_weight") return ["gradient of score_weight, by the formula above = " + number(name, i, j), []];
    return aboutMatrix(name, i, j);
  };
};

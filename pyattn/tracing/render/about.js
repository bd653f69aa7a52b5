// How a number of a trace is explained: a text, and the cells that it reads as [name, i, j], where -1 stands for all.
const wording = function (data) {
  function text(x) {
    const size = Math.abs(x);
    if (x === 0) return "0";
    if (!isFinite(x)) return isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf";
    if (size < 5e-5 || size >= 1e7) return x.toExponential(size < 5e-5 ? 1 : 3);
    return String(+x.toFixed(4));
  }
  const factor = x => x < 0 ? "(" + text(x) + ")" : text(x);
  const vector = v => "[" + v.slice(0, 8).map(text).join(", ") + (v.length > 8 ? ", ..." : "") + "]";
  const sum = t => t.slice(0, 6).join(" + ") + (t.length > 6 ? " + ... (" + t.length + " terms)" : "");
  const products = (a, b) => a.map((x, d) => factor(x) + "\u00d7" + factor(b[d]));
  const label = (axis, n) => n + 1 + (data[axis] ? " (" + data[axis][n] + ")" : "");
  const LARGE = "The matrices are too large to be embedded in this page.";
  return {text, factor, vector, sum, products, label, LARGE};
};

const aboutForward = function (model) {
  const {data, matrix, row, column, at} = model, {text, factor, vector, sum, products, label, LARGE} = wording(model.data);
  const line = data.column ? "row" : "column";
  const equals = (name, i, j) => matrix(name) ? " = " + text(at(matrix(name), i, j)) : "";
  const origin = data.editable ? "\ngiven: type another number to change it" : "\ngiven";

  function aboutGiven(name, i, j) {
    if (name === "scale") return ["scale" + equals(name, i, j) + ", the factor of the scores" + origin, []];
    if (name === "x") return ["input " + label("q", i) + ", number " + (j + 1) + equals(name, i, j) + origin, []];
    if (name === "visible" || name === "attn_bias") {
      const pair = "mask for query " + label("q", i) + " and key " + label("k", j);
      if (name === "attn_bias") return [pair + equals(name, i, j) + "\nadded to the score", []];
      return [pair + ": " + (at(matrix(name), i, j) ? "attends" : "hidden"), []];
    }
    if (name === "score_weight") {
      const numbers = matrix(name).r > 1 ? (i + 1) + ", " + (j + 1) : j + 1;
      return ["weight of the scores, number " + numbers + equals(name, i, j) + origin, []];
    }
    const place = name[0] === "b" ? ", number " + (j + 1) : ", from number " + (i + 1) + " of x to number " + (j + 1);
    return [name + place + equals(name, i, j) + origin, []];
  }
  function aboutProjected(name, i, j) {
    const w = {keys: "key", queries: "query", values: "value"}[name];
    const head = w + " " + label(name === "queries" ? "q" : "k", i) + ", number " + (j + 1);
    const x = matrix("x");
    if (!x) return [head + equals(name, i, j) + (matrix(name) && data.given ? origin : "\n" + LARGE), []];
    if (i >= x.r) return [head + equals(name, i, j) + "\nnot projected from an input: a parameter or zero", []];
    const numbers = row(x, i), weights = column(matrix("w_" + w), j), bias = matrix("b_" + w);
    return [head + "\nx " + vector(numbers) + "\n" + line + " " + (j + 1) + " of w_" + w + " " + vector(weights) + "\n" +
      sum(products(numbers, weights)) + (bias ? " + bias " + factor(bias.a[j]) : "") + equals(name, i, j),
      [["x", i, -1], ["w_" + w, -1, j], ["b_" + w, -1, j]]];
  }
  function scoreProducts(i, j) {
    const query = row(matrix("queries"), i), key = row(matrix("keys"), j), W = matrix("score_weight");
    const scale = matrix("scale").a[0], signed = data.score === "distance" ? -scale : scale;
    const before = signed === 1 ? "" : signed === -1 ? "-" : text(signed) + " \u00d7 ";
    let head = "query " + vector(query) + "\nkey " + vector(key) + "\n", q = query;
    if (data.score === "bilinear") {
      q = model.times(query, W);
      head += "query times W " + vector(q) + "\n";
    }
    let terms = sum(q.map((x, d) =>
      data.score === "distance" ? "(" + text(x) + " - " + factor(key[d]) + ")\u00b2" :
      data.score === "additive" ? factor(W.a[d]) + "\u00d7tanh(" + text(x) + " + " + factor(key[d]) + ")" :
      factor(x) + "\u00d7" + factor(key[d])));
    if (before || data.score === "cosine") terms = before + "(" + terms + ")";
    if (data.score === "cosine") terms += " / (" + text(Math.hypot(...q)) + "\u00d7" + text(Math.hypot(...key)) + ")";
    return head + terms + " = " + text(model.score(query, key));
  }
  function aboutScore(i, j) {
    const head = "score of query " + label("q", i) + " and key " + label("k", j), scores = model.scores(i);
    const from = [["queries", i, -1], ["keys", j, -1], ["scale", 0, 0], ["visible", i, j], ["attn_bias", i, j]];
    if (!scores) return [head + "\n" + LARGE, from];
    if (!model.seen(i, j)) return [head + "\nhidden by the mask = -inf", [["visible", i, j], ["attn_bias", i, j]]];
    const bias = matrix("attn_bias");
    const added = bias ? "\n+ " + factor(at(bias, i, j)) + " from the mask = " + text(scores[j]) : "";
    return [head + "\n" + scoreProducts(i, j) + added, from];
  }
  function aboutWeight(i, j) {
    const scores = model.scores(i), from = [["scores", i, -1]];
    let words = "weight of key " + label("k", j) + " for query " + label("q", i);
    if (!scores) return [words + "\n" + LARGE, from];
    words += "\nscores " + vector(scores) + "\n";
    if (!model.seen(i, j)) words += "hidden by the mask";
    else if (data.normalize === "softmax") {
      const all = scores.filter((_, k) => model.seen(i, k)).map(s => "exp(" + text(s) + ")");
      words += "exp(" + text(scores[j]) + ") / (" + sum(all) + ")";
    } else if (data.normalize === "sigmoid") words += "1 / (1 + exp(" + text(-scores[j]) + "))";
    else words += "max(" + text(scores[j]) + " - tau, 0)";
    const decimals = data.rounded === 1 ? " decimal" : " decimals";
    const rounded = data.rounded === null ? "" : ", rounded to " + data.rounded + decimals;
    return [words + " = " + text(model.weights(i)[j]) + rounded, from];
  }
  function aboutOutput(i, d) {
    const weights = model.weights(i), V = matrix("values"), head = "output " + label("q", i) + ", number " + (d + 1);
    const from = [["weights", i, -1], ["weighted_values", [-1, i], d], ["values", -1, d]], number = model.output(i)[d];
    if (data.empty === "nan" && model.scores(i).every(s => s === -Infinity))
      return [head + " = nan\nevery key is masked", from.slice(0, 1)];
    return [head + "\nweights " + vector(weights) + "\n" + line + " " + (d + 1) + " of values " + vector(column(V, d)) +
      "\n" + sum(products(weights, column(V, d))) + " = " + text(number), from];
  }
  function aboutWeighted(j, i, d) {
    const weight = model.weights(i)[j], value = at(matrix("values"), j, d);
    return ["weighted value of key " + label("k", j) + " for query " + label("q", i) + ", number " + (d + 1) + "\n" +
      factor(weight) + "\u00d7" + factor(value) + " = " + text(model.seen(i, j) ? weight * value : 0),
      [["weights", i, j], ["values", j, d]]];
  }
  function about(name, i, j, q) {
    if (name in {keys: 1, queries: 1, values: 1}) return aboutProjected(name, i, j);
    if (name === "scores") return aboutScore(i, j);
    if (name === "weights") return aboutWeight(i, j);
    if (name !== "outputs" && name !== "weighted_values") return aboutGiven(name, i, j);
    if (!matrix("queries") || !matrix("values")) return [name.replace("_", " ") + "\n" + LARGE, []];
    return name === "outputs" ? aboutOutput(i, j) : aboutWeighted(i, q, j);
  }
  return about;
};

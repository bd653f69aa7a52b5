// Under the mouse, a finger or the keyboard's focus a number explains itself: the products that it is the sum of appear
// beside it, and the numbers that it is computed from are marked. A table may show a part of its matrix; data-rows and
// data-cols are then the indices, with -1 for the gap. data-q is the query of steps 4 to 7.
const explain = function (root) {
  if (root.dataset.on) return null;
  root.dataset.on = 1;
  const fragment = root.closest(".pyattn");
  const areas = [root, ...fragment.querySelectorAll("[data-of='" + root.id + "']")];
  const model = attention(JSON.parse(root.querySelector("script[type='application/json']").textContent));
  const {data, matrix, row, column, at} = model;
  let tip = null, marked = [], byKey = false, mouse = null;

  // Numbers as text
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

  // Explanations: a text, and the cells that it reads as [name, i, j], where -1 stands for all
  const LARGE = "The matrices are too large to be embedded in this page.";
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

  // Places: of a cell in its whole matrix, in the row convention; null in a gap
  function placeIn(table) {
    const rows = table.dataset.rows && table.dataset.rows.split(" "), above = table.tHead ? 1 : 0;
    const columns = table.dataset.cols && table.dataset.cols.split(" "), before = table.querySelector("tbody th") ? 1 : 0;
    const query = table.dataset.q === undefined ? null : +table.dataset.q;
    return cell => {
      const r = cell.parentNode.rowIndex - above, c = cell.cellIndex - before;
      const place = [rows ? +rows[r] : r, columns ? +columns[c] : c];
      if (place[0] < 0 || place[1] < 0) return null;
      if (data.column) place.reverse();
      if (query !== null && table.dataset.m !== "weighted_values") place[0] = query;
      return {i: place[0], j: place[1], q: query};
    };
  }
  function clear() {
    marked.forEach(cell => cell.classList.remove("pa-from", "pa-here"));
    marked = [];
    if (tip) tip.remove();
    tip = null;
  }
  function mark(cell, kind) {
    cell.classList.add(kind);
    marked.push(cell);
  }
  function markAll([name, i, j]) {
    const [key, query] = Array.isArray(i) ? i : [i, null];
    areas.forEach(area => area.querySelectorAll("table[data-m='" + name + "']").forEach(table => {
      const placeOf = placeIn(table);
      table.querySelectorAll("td").forEach(cell => {
        const place = placeOf(cell);
        if (!place || (query !== null && place.q !== query)) return;
        if ((key < 0 || key === place.i) && (j < 0 || j === place.j)) mark(cell, "pa-from");
      });
    }));
  }
  function show([words, from], area, cell) {
    clear();
    tip = document.createElement("div");
    tip.className = "pa-tip";
    tip.setAttribute("role", "tooltip");
    tip.textContent = words;
    area.appendChild(tip);
    from.forEach(markAll);
    if (cell) mark(cell, "pa-here");
  }
  function put(x, y) {
    const high = tip.offsetHeight;
    tip.style.left = Math.max(4, Math.min(x, window.innerWidth - tip.offsetWidth - 8)) + "px";
    tip.style.top = (y + high + 8 > window.innerHeight ? Math.max(4, y - high - 40) : y) + "px";
  }
  function showCell(cell, area, words) {
    const table = cell.closest("table"), place = placeIn(table)(cell);
    if (!place) return clear();
    const found = about(table.dataset.m, place.i, place.j, place.q);
    show(words ? [words, []] : found, area, cell);
    const box = cell.getBoundingClientRect();
    put(box.left, box.bottom + 8);
    return tip.textContent;
  }
  function showPixel(image, area, event) {
    const [rows, columns] = image.dataset.n.split(" "), box = image.getBoundingClientRect();
    const index = (share, count) => Math.max(0, Math.min(Math.floor(share * count), count - 1));
    const r = index((event.clientY - box.top) / box.height, rows);
    const c = index((event.clientX - box.left) / box.width, columns);
    show(data.column ? aboutWeight(c, r) : aboutWeight(r, c), area);
    put(event.clientX + 12, event.clientY + 16);
  }
  function isMoved(event) {
    const before = mouse;
    mouse = event.screenX + " " + event.screenY;
    return before !== null && before !== mouse;
  }
  function over(event) {
    const area = event.currentTarget, found = event.target.closest && event.target.closest("td,img");
    if (isMoved(event)) byKey = false;
    if (byKey) return;  // the keyboard scrolls the page below a mouse at rest
    if (!found || !area.contains(found)) clear();
    else if (found.tagName === "IMG") showPixel(found, area, event);
    else showCell(found, area);
  }

  // Keyboard: one stop of Tab for each table, arrow keys inside it
  const target = cell => cell.querySelector("input") || cell;
  const spoken = document.createElement("div");
  spoken.className = "pa-spoken";
  spoken.setAttribute("aria-live", "polite");
  root.appendChild(spoken);
  function focusable(table) {
    table.querySelectorAll("td:not(.pa-gap)").forEach((cell, n) => target(cell).setAttribute("tabindex", n ? -1 : 0));
  }
  function step(cell, down, right) {
    let r = cell.parentNode.rowIndex, c = cell.cellIndex, next = null;
    const rows = cell.closest("table").rows;
    do {
      r += down;
      c += right;
      next = rows[r] && rows[r].cells[c];
    } while (next && next.className.includes("pa-gap"));
    return next && next.tagName === "TD" ? next : null;
  }
  const ARROWS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};
  function inText(input, right) {
    if (input.type !== "text" || !right) return false;
    if (input.selectionStart === 0 && input.selectionEnd === input.value.length) return false;
    return input.selectionStart !== (right > 0 ? input.value.length : 0);
  }
  function press(event) {
    byKey = true;
    if (event.key === "Escape") return clear();
    const cell = event.target.closest("td"), arrow = ARROWS[event.key];
    if (!cell || !arrow || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
    if (inText(event.target, arrow[1])) return;
    const next = step(cell, ...arrow);
    event.preventDefault();
    if (!next) return;
    target(cell).setAttribute("tabindex", -1);
    target(next).setAttribute("tabindex", 0);
    target(next).focus();
  }
  areas.forEach(area => {
    area.querySelectorAll("table").forEach(focusable);
    area.addEventListener("mouseover", over);
    area.addEventListener("click", over);
    area.addEventListener("mousemove", event => {
      if (!tip || event.target.tagName === "IMG") over(event);
    });
    area.addEventListener("mousedown", () => { byKey = false; });
    area.addEventListener("mouseleave", () => { if (!byKey) clear(); });
    area.addEventListener("keydown", press);
    area.addEventListener("focusin", event => {
      const cell = event.target.closest("td");
      if (!cell || !byKey) return;
      const words = showCell(cell, area);
      spoken.textContent = words || "";
    });
    area.addEventListener("focusout", clear);
  });
  document.addEventListener("keydown", () => { byKey = true; }, true);  // Tab from outside
  document.addEventListener("mousemove", event => { if (isMoved(event)) byKey = false; }, true);
  fragment.querySelectorAll(".pa-how[hidden]").forEach(words => { words.hidden = false; });
  return {model, placeIn, focusable, showCell, spoken, clear, fragment, areas};
};

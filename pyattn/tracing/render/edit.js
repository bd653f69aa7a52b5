// Numbers on a saved page that can be changed: given numbers become fields, and after each change every table, formula
// and note is written again, as Python writes them (text.py, steps.py).
const edit = function (root, page) {
  const {model, placeIn, focusable, showCell, spoken, clear, fragment} = page;
  const {data, matrix, row, at} = model;
  if (!data.editable) return;
  const tools = fragment.querySelector(".pa-tools"), bar = fragment.querySelector(".pa-bar");
  const said = bar.querySelector(".pa-said"), code = tools.querySelector("textarea");
  const GIVEN = Object.keys(data.m).filter(name => name !== "score_weight").concat("scale", "visible");
  const originals = {};
  const NUMBER = /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i, NAMED = /^([+-]?)(nan|inf|infinity)$/i;

  // Numbers as text
  function fixed(x, decimals) {
    const text = x.toFixed(decimals), exact = Math.abs(x).toFixed(60).split(".")[1].slice(decimals);
    if (!/^50*$/.test(exact)) return text;  // of two as near, Python takes the even one
    const lower = (x < 0 ? "-" : "") + Math.abs(x).toFixed(60).slice(0, decimals ? decimals - 60 : -61);
    return "02468".includes(lower.slice(-1)) ? lower : text;
  }
  function usual(x) {
    return isFinite(x) && Math.abs(x) < 1e7 && (x === 0 || Math.abs(x) >= 5e-5);
  }
  function decimalsOf(numbers) {
    const shown = numbers.filter(usual);
    return [0, 1, 2, 3].find(d => shown.every(x => Number(x.toFixed(d)) === x)) ?? 4;
  }
  function numberText(x, decimals) {
    if (!isFinite(x)) return isNaN(x) ? "nan" : x > 0 ? "inf" : "-inf";
    if (x === 0) return "0";
    if (usual(x)) return fixed(x, decimals ?? decimalsOf([x]));
    const small = Math.abs(x) < 1, [digits, power] = x.toExponential(small ? 1 : 3).split("e");
    const shown = small ? digits : digits.includes(".") ? digits.replace(/\.?0+$/, "") : digits;
    return shown + "e" + power[0] + power.slice(1).padStart(2, "0");
  }
  const fullText = x => isFinite(x) ? String(x) : numberText(x);
  const vectorText = v => "[" + v.slice(0, 8).map(x => numberText(x)).concat(v.length > 8 ? ["..."] : []).join(", ") + "]";
  function read(text) {
    const plain = text.trim().replace("\u2212", "-"), named = NAMED.exec(plain);
    if (named) return named[2][0].toLowerCase() === "n" ? NaN : named[1] === "-" ? -Infinity : Infinity;
    return NUMBER.test(plain) ? Number(plain) : null;
  }

  // Formulas and notes of steps 4 to 7, which are those of query 1, and of step 8
  const name = () => "input 1" + (data.q ? " (" + data.q[0] + ")" : "");
  const nothing = i => model.scores(i).every(s => s === -Infinity);
  function scoreFormula() {
    const scale = matrix("scale").a[0] * (data.score === "distance" ? -1 : 1);
    const factor = scale === 1 ? "" : scale === -1 ? "-" : numberText(scale) + " * ";
    const added = matrix("attn_bias") ? " + attn_bias" : "";
    if (data.score === "dot")
      return "scores = " + factor + (data.column ? "keys.T @ queries" : "queries @ keys.T") + added;
    const terms = {cosine: "(q . k) / (|q| |k|)", distance: "|q - k|^2", bilinear: "(q W k)"}[data.score];
    return "score(q, k) = " + factor + (terms || "w . tanh(q + k)") + added;
  }
  function scoreNote() {
    const query = vectorText(row(matrix("queries"), 0)), scores = vectorText(model.scores(0)), bias = matrix("attn_bias");
    const added = bias ? " + mask " + vectorText(row(bias, 0)) : "", scale = matrix("scale").a[0] === 1 ? "" : "scale * ";
    const product = data.column ? "K^T x " + query : query + " x K^T";
    const hidden = model.scores(0).filter((_, j) => !model.seen(0, j)).length;
    return name() + ": " + (data.score === "dot" ? scale + product + added + " = " + scores :
      query + " against every key" + added + " gives " + scores) +
      (hidden ? "\n-inf: hidden by the mask, " + hidden + " of " + matrix("keys").r + " keys" : "");
  }
  function weightNote() {
    return data.normalize + "(" + vectorText(model.scores(0)) + ") = " + vectorText(model.weights(0)) +
      (nothing(0) ? "\nEvery key is masked: all weights are 0." : "");
  }
  function productNote() {
    const weights = model.weights(0), weighted = model.weighted(0), V = matrix("values");
    const lines = weights.slice(0, 8).map((w, j) =>
      numberText(w) + " * " + vectorText(row(V, j)) + " = " + vectorText(weighted[j]));
    return lines.concat(weights.length > 8 ? ["... and " + (weights.length - 8) + " more"] : []).join("\n");
  }
  function outputNote() {
    const weighted = model.weighted(0), shown = weighted.slice(0, 8).map(vectorText);
    return shown.concat(weighted.length > 8 ? ["..."] : []).join(" + ") + " = " + vectorText(model.output(0));
  }
  const NOTES = {4: scoreNote, 5: weightNote, 6: productNote, 7: outputNote};

  // Writing everything again
  const tables = [...root.querySelectorAll("table[data-m]")].map(table => {
    const placeOf = placeIn(table);
    const cells = [...table.querySelectorAll("td")].map(cell => ({cell, ...placeOf(cell)}));
    return {name: table.dataset.m, cells};
  });
  function numberAt(name, {i, j, q}) {
    if (name === "scores" || name === "weights") return model[name](i)[j];
    if (name === "outputs") return model.output(i)[j];
    if (name === "weighted_values") return model.weighted(q)[i][j];
    return at(matrix(name), i, j);
  }
  function write({name, cells}, first) {
    const numbers = cells.map(one => numberAt(name, one)), decimals = decimalsOf(numbers);
    const top = name === "weights" ? Math.max(...model.result("weights").a.map(w => w || 0)) || 1 : 1;
    cells.forEach(({cell, i, j, q}, n) => {
      const field = cell.querySelector("input"), text = numberText(numbers[n], decimals), key = [name, i, j, q].join();
      if (first) originals[key] = numbers[n];
      cell.classList.toggle("pa-changed", !Object.is(originals[key] + 0, numbers[n] + 0));
      if (name === "weights") cell.style.setProperty("--w", 0.8 * (numbers[n] || 0) / top);
      if (!field) cell.textContent = text;
      else if (field.type === "checkbox") field.checked = numbers[n] !== 0;
      else if (field !== document.activeElement) field.value = text;
    });
  }
  function writeAll(first) {
    tables.forEach(table => write(table, first));
    root.querySelectorAll("section[data-step]").forEach(section => {
      const number = section.dataset.step, note = section.querySelector(".pa-note"), pre = section.querySelector("pre");
      if (NOTES[number] && note) note.textContent = NOTES[number]();
      if (number === "4") pre.textContent = scoreFormula();
      if (number === "8") pre.textContent = pre.textContent.replace(/^.*/, scoreFormula);
    });
    if (!code.hidden) code.value = asPython();
    said.textContent = story();
  }

  // Sentences about what has changed, and about numbers that are not numbers
  const first = vectorText(model.output(0));
  const list = words => words.length > 6 ? words.slice(0, 6).join(", ") + ", ..." : words.join(", ");
  function story() {
    const now = vectorText(model.output(0)), outputs = model.result("outputs");
    const rows = Array.from({length: outputs.r}, (_, i) => i), lines = [];
    const odd = GIVEN.flatMap(name => placesOf(name, x => !isFinite(x) && !(name === "attn_bias" && x === -Infinity)));
    root.querySelectorAll("[aria-invalid=true]").forEach(field => {
      lines.push(field.getAttribute("aria-label") + ": " + field.validationMessage.split("\n")[0]);
    });
    if (root.querySelector(".pa-changed"))
      lines.push(first === now ? "Output 1 is still " + now + "." : "Output 1 was " + first + " and is now " + now + ".");
    const bad = rows.filter(i => row(outputs, i).some(isNaN)).map(i => i + 1);
    if (odd.length) {
      const verb = odd.length === 1 ? " holds nan or inf" : " hold nan or inf";
      lines.push(list(odd) + verb + ": products and sums with nan are nan, and so are inf - inf and 0 * inf.");
    }
    const large = odd.length ? "" : " A sum was too large for float64.";
    if (bad.length) lines.push("Outputs that hold nan: " + list(bad) + "." + large);
    else if (odd.length) lines.push("No output is nan: masked positions are not read.");
    const empty = rows.filter(nothing).map(i => i + 1);
    if (empty.length === 1) lines.push("Query " + empty + " attends to no key: its weights and its output are 0.");
    if (empty.length > 1) lines.push("Queries " + list(empty) + " attend to no key: their weights and outputs are 0.");
    return lines.join("\n");
  }
  function placesOf(name, test) {
    const found = [], M = matrix(name);
    M.a.forEach((x, n) => { if (test(x)) found.push(placeName(name, Math.floor(n / M.c), n % M.c)); });
    return found;
  }
  function placeName(name, i, j) {
    const shown = name === "visible" ? "mask" : name;
    return name === "scale" ? name : shown + (data.column ? "[" + j + "][" + i + "]" : "[" + i + "][" + j + "]");
  }

  // The present numbers as a call
  function python(x, isMask) {
    if (!isFinite(x)) return 'float("' + numberText(x) + '")';
    const text = String(x), isFloat = isMask || !Number.isSafeInteger(x);  // NumPy has no integers of over 64 bits
    return text + (isFloat && /^-?\d+$/.test(text) ? ".0" : "");
  }
  function literal(name, M, write, transpose) {
    const rows = Array.from({length: M.r}, (_, i) => row(M, i));
    const lines = transpose ? rows[0].map((_, j) => rows.map(line => line[j])) : rows;
    return "[" + lines.map(line => "[" + line.map(x => write(x)).join(", ") + "]").join(",\n" + " ".repeat(name.length + 4)) + "]";
  }
  function maskLiteral() {
    const mask = matrix("visible"), bias = matrix("attn_bias");
    if (!bias) return mask.a.every(x => x) ? null : literal("attn_mask", mask, x => x ? "True" : "False");
    const numbers = bias.a.map((x, n) => mask.a[n] ? x : -Infinity);
    return literal("attn_mask", {r: mask.r, c: mask.c, a: numbers}, x => python(x, true));
  }
  function asPython() {
    const own = data.given ? {query: "queries", key: "keys", value: "values"} :
      {x: "x", w_query: "w_query", w_key: "w_key", w_value: "w_value"};
    const lines = ["import pyattn", ""], words = Object.keys(own);
    for (const name of words) lines.push(name + " = " + literal(name, matrix(own[name]), x => python(x), data.column));
    words.push("scale=" + python(matrix("scale").a[0]));
    const mask = maskLiteral(), biases = ["b_query", "b_key", "b_value"].map(matrix), W = matrix("score_weight");
    if (mask) {
      lines.push("attn_mask = " + mask);
      words.push("attn_mask=attn_mask");
    }
    if (biases.some(bias => bias))
      words.push("bias=[" + biases.map(b => b ? "[" + row(b, 0).map(x => python(x)).join(", ") + "]" : "None") + "]");
    if (data.score !== "dot") words.push('score="' + data.score + '"');
    if (W) {
      const written = literal("score_weight", W, x => python(x));
      lines.push("score_weight = " + (data.score === "additive" ? written.slice(1, -1) : written));
      words.push("score_weight=score_weight");
    }
    if (data.normalize !== "softmax") words.push('normalize="' + data.normalize + '"');
    if (data.rounded !== null) words.push("round_weights=" + data.rounded);
    if (data.column) words.push('convention="column"');
    if (data.q) words.push("tokens=" + JSON.stringify(data.q));
    if (data.given && data.k) words.push("key_tokens=" + JSON.stringify(data.k));
    lines.push((data.given ? "trace = pyattn.trace_attention(" : "trace = pyattn.trace(") + words.join(", ") + ")");
    return lines.concat("print(trace)").join("\n") + "\n";
  }

  // Fields
  function complain(field, words) {
    field.setAttribute("aria-invalid", words !== null);
    field.setCustomValidity(words || "");
    said.textContent = story();
    if (words === null) return;
    showCell(field.closest("td"), root, words);
    spoken.textContent = words;
  }
  function problem(field, name) {
    const number = read(field.value);
    if (number === null)
      return "\u201c" + field.value + "\u201d is not a number: write one such as 1, -0.5, 2e-3, nan or inf.\n" +
        "Nothing on the page has changed.";
    if (name === "scale" && !isFinite(number)) return "scale must be a finite number.\nNothing on the page has changed.";
    return null;
  }
  function makeField(name, {cell, i, j}) {
    const field = document.createElement("input");
    field.type = name === "visible" ? "checkbox" : "text";
    field.setAttribute("aria-label", placeName(name, i, j));
    const now = () => at(matrix(name), i, j);
    const change = number => {
      if (Object.is(number, now())) return;
      model.set(name, i, j, number);
      writeAll(false);
    };
    if (name === "visible") {
      field.addEventListener("change", () => change(field.checked ? 1 : 0));
    } else {
      field.size = 5;
      field.spellcheck = false;
      field.autocomplete = "off";
      field.addEventListener("focus", () => {
        if (field.getAttribute("aria-invalid") !== "true") field.value = fullText(now());
        field.select();
      });
      field.addEventListener("input", () => {
        if (problem(field, name) !== null) return;
        complain(field, null);
        change(read(field.value));
        showCell(cell, root);
      });
      field.addEventListener("change", () => complain(field, problem(field, name)));
      field.addEventListener("blur", () => {
        if (field.getAttribute("aria-invalid") !== "true") writeAll(false);
      });
      field.addEventListener("keydown", event => {
        if (event.key === "Enter") complain(field, problem(field, name));
        if (event.key !== "Escape" || field.getAttribute("aria-invalid") !== "true") return;
        complain(field, null);
        field.value = fullText(now());
      });
    }
    cell.removeAttribute("tabindex");  // the field takes the focus
    cell.textContent = "";
    cell.classList.add("pa-field");
    cell.appendChild(field);
  }
  // A given matrix has its fields where it first stands; the copies in later steps show the same numbers.
  const seen = {};
  tables.forEach(table => {
    if (!GIVEN.includes(table.name) || seen[table.name] || table.cells[0].q !== null) return;
    seen[table.name] = true;
    table.cells.forEach(one => makeField(table.name, one));
    focusable(table.cells[0].cell.closest("table"));
  });

  function restore() {
    model.reset();
    root.querySelectorAll("[aria-invalid=true]").forEach(field => complain(field, null));
    clear();
    writeAll(false);
  }
  function copy(event) {
    code.hidden = false;
    code.value = asPython();
    code.focus({preventScroll: true});
    code.setSelectionRange(0, code.value.length);
    const copied = document.execCommand("copy");
    event.target.focus({preventScroll: true});
    said.textContent = (copied ? "The code is copied. It is also in the field above, under the task.\n" :
      "Copy the code from the field above, under the task.\n") + story();
  }
  bar.querySelector("[data-do=reset]").addEventListener("click", restore);
  bar.querySelector("[data-do=copy]").addEventListener("click", copy);
  tools.hidden = bar.hidden = false;
  writeAll(true);
  root.numbers = name => model.result(name);  // in full, for whoever opens the console
};
